/* SPDX-License-Identifier: BSD-3-Clause */
#include <limits.h>
#include <string.h>

#include "channel_attr.h"

/* A member of struct pier_channel_attr and the keyword that sets it. */
struct attribute {
	const char *name;
	size_t offset; /* of 4 bytes */
	enum unit {
		NUMBER,
		SECONDS_AS_MS, /* a float in Python */
		SECONDS_AS_US,
		WAITING,
	} unit;
};

#define MEMBER(member) offsetof(struct pier_channel_attr, member)
#define NUMBER_OF(member)                       \
	{                                       \
#member, MEMBER(member), NUMBER \
	}

static const struct attribute attributes[] = {
	NUMBER_OF(port),
	NUMBER_OF(max_send_wr),
	NUMBER_OF(max_recv_wr),
	NUMBER_OF(max_send_sge),
	NUMBER_OF(max_recv_sge),
	NUMBER_OF(max_inline),
	NUMBER_OF(mtu),
	NUMBER_OF(max_rd_atomic),
	/* The library's name means seconds everywhere else in Python. */
	{ "ack_timeout", MEMBER(timeout), NUMBER },
	NUMBER_OF(retry_count),
	NUMBER_OF(rnr_retry_count),
	NUMBER_OF(min_rnr_timer),
	NUMBER_OF(service_level),
	NUMBER_OF(traffic_class),
	NUMBER_OF(hop_limit),
	NUMBER_OF(gid_index),
	NUMBER_OF(psn),
	NUMBER_OF(access),
	{ "timeout", MEMBER(timeout_ms), SECONDS_AS_MS },
	NUMBER_OF(pkey_index),
	{ "waiting", MEMBER(waiting), WAITING },
	{ "spin", MEMBER(spin_us), SECONDS_AS_US },
	NUMBER_OF(cq_depth),
	NUMBER_OF(comp_vector),
	NUMBER_OF(flow_label),
	{ "keepalive", MEMBER(keepalive_ms), SECONDS_AS_MS },
	NUMBER_OF(max_dest_rd_atomic),
	NUMBER_OF(src_path_bits),
	NUMBER_OF(static_rate),
};

#define ATTRIBUTE_COUNT (sizeof(attributes) / sizeof(attributes[0]))

static const char *const waiting_names[] = {
	[PIER_WAIT_ADAPTIVE] = "adaptive",
	[PIER_WAIT_POLL] = "poll",
	[PIER_WAIT_EVENT] = "event",
};

enum {
	WAITING_COUNT = sizeof(waiting_names) / sizeof(waiting_names[0])
};

static bool convert_seconds(const struct attribute *attribute, PyObject *value,
			    double per_second, long long *ret_number)
{
	double seconds = PyFloat_AsDouble(value);

	if (seconds == -1.0 && PyErr_Occurred())
		return false;
	/* The negated test also refuses what is not a number. */
	if (!(seconds >= 0 && seconds * per_second <= INT_MAX) ||
	    (seconds == 0 &&
	     attribute->offset == offsetof(struct pier_channel_attr, timeout_ms))) {
		PyErr_Format(PyExc_ValueError, "%s %R is not a time in seconds",
			     attribute->name, value);
		return false;
	}
	*ret_number = (long long)(seconds * per_second + 0.5);
	if (*ret_number == 0 && seconds > 0)
		*ret_number = 1;
	return true;
}

static bool convert_number(const struct attribute *attribute, PyObject *value,
			   long long *ret_number)
{
	/* The largest numbers are PIER_UNSET and PIER_GID_ANY, which is -1 in Python. */
	bool is_gid = attribute->offset == offsetof(struct pier_channel_attr, gid_index);
	long long least = is_gid ? -1 : 0, most = PIER_GID_ANY - 1;
	PyObject *number = PyNumber_Index(value);

	if (!number)
		return false;
	*ret_number = PyLong_AsLongLong(number);
	Py_DECREF(number);
	if (*ret_number == -1 && PyErr_Occurred())
		return false;
	if (*ret_number >= least && *ret_number <= most) {
		if (*ret_number < 0)
			*ret_number = PIER_GID_ANY;
		return true;
	}
	PyErr_Format(PyExc_ValueError, "%s %R is not between %lld and %lld",
		     attribute->name, value, least, most);
	return false;
}

static bool convert(const struct attribute *attribute, PyObject *value,
		    long long *ret_number)
{
	switch (attribute->unit) {
	case SECONDS_AS_MS:
		return convert_seconds(attribute, value, 1e3, ret_number);
	case SECONDS_AS_US:
		return convert_seconds(attribute, value, 1e6, ret_number);
	case WAITING:
		*ret_number = 1 + pier_py_choose(value, "waiting", waiting_names + 1,
						 WAITING_COUNT - 1);
		return *ret_number > 0;
	default:
		return convert_number(attribute, value, ret_number);
	}
}

static void store(const struct attribute *attribute, long long number,
		  struct pier_channel_attr *attr)
{
	const uint32_t word = (uint32_t)number;

	memcpy((char *)attr + attribute->offset, &word, sizeof(word));
}

static long long load(const struct attribute *attribute,
		      const struct pier_channel_attr *attr)
{
	uint32_t word;

	memcpy(&word, (const char *)attr + attribute->offset, sizeof(word));
	return word;
}

/* Remove a keyword. Returns 1 and a new reference to its value, 0, or -1: raised. */
static int take_keyword(PyObject *keywords, const char *name, PyObject **ret_value)
{
	PyObject *value = PyDict_GetItemString(keywords, name);

	if (!value)
		return 0;
	*ret_value = Py_NewRef(value);
	if (PyDict_DelItemString(keywords, name) == 0)
		return 1;
	Py_DECREF(value);
	return -1;
}

static int take_options(PyObject *keywords, struct pier_channel_attr *attr)
{
	PyObject *options;
	const char *text;
	int error = 0, found = take_keyword(keywords, "options", &options);

	if (found <= 0)
		return found;
	text = PyUnicode_AsUTF8AndSize(options, NULL);
	if (text) {
		error = pier_channel_attr_parse(attr, text);
		if (error)
			pier_py_fail(error);
	}
	Py_DECREF(options);
	return text && !error ? 0 : -1;
}

/* PyArg_ParseTupleAndKeywords() would count the arguments, and not name the wrong one. */
static int refuse_unknown(PyObject *keywords, char *const *others)
{
	PyObject *name, *value;
	Py_ssize_t position = 0;

	while (keywords && PyDict_Next(keywords, &position, &name, &value)) {
		char *const *other = others;

		while (*other && PyUnicode_CompareWithASCIIString(name, *other) != 0)
			other++;
		if (*other)
			continue;
		PyErr_Format(PyExc_TypeError,
			     "%R is neither a parameter nor a field of ChannelAttributes",
			     name);
		return -1;
	}
	return 0;
}

int pier_py_channel_attr_take(PyObject *keywords, char *const *others,
			      struct pier_channel_attr *attr)
{
	int found = keywords ? take_options(keywords, attr) : 0;

	for (size_t i = 0; i < ATTRIBUTE_COUNT && keywords && found >= 0; i++) {
		PyObject *value;
		long long number;

		found = take_keyword(keywords, attributes[i].name, &value);
		if (found <= 0)
			continue;
		if (convert(&attributes[i], value, &number))
			store(&attributes[i], number, attr);
		else
			found = -1;
		Py_DECREF(value);
	}
	return found < 0 ? -1 : refuse_unknown(keywords, others);
}

static PyObject *attribute_object(const struct attribute *attribute,
				  const struct pier_channel_attr *attr)
{
	long long number = load(attribute, attr);

	switch (attribute->unit) {
	case SECONDS_AS_MS:
		return PyFloat_FromDouble((double)number / 1e3);
	case SECONDS_AS_US:
		return PyFloat_FromDouble((double)number / 1e6);
	case WAITING:
		return PyUnicode_FromString(waiting_names[number]);
	default:
		return PyLong_FromLongLong(number);
	}
}

PyObject *pier_py_channel_attr_record(const struct pier_channel_attr *attr)
{
	PyObject *fields = PyTuple_New(ATTRIBUTE_COUNT), *record = NULL;
	size_t i = 0;

	if (!fields)
		return NULL;
	for (; i < ATTRIBUTE_COUNT; i++) {
		PyObject *value = attribute_object(&attributes[i], attr);

		if (!value || PyTuple_SetItem(fields, (Py_ssize_t)i, value) < 0)
			break;
	}
	if (i == ATTRIBUTE_COUNT)
		record = pier_py_record("ChannelAttributes", "O", fields);
	Py_DECREF(fields);
	return record;
}
