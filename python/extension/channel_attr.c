/* SPDX-License-Identifier: BSD-3-Clause */
#include <string.h>

#include "channel_attr.h"

#define MEMBER(member) offsetof(struct pier_channel_attr, member)

/* The members of 4 bytes, in the order of the fields of ChannelAttributes. */
static const size_t offsets[] = {
	MEMBER(port),
	MEMBER(max_send_wr),
	MEMBER(max_recv_wr),
	MEMBER(max_send_sge),
	MEMBER(max_recv_sge),
	MEMBER(max_inline),
	MEMBER(mtu),
	MEMBER(max_rd_atomic),
	/* The library's name means seconds everywhere else in Python. */
	MEMBER(timeout),
	MEMBER(retry_count),
	MEMBER(rnr_retry_count),
	MEMBER(min_rnr_timer),
	MEMBER(service_level),
	MEMBER(traffic_class),
	MEMBER(hop_limit),
	MEMBER(gid_index),
	MEMBER(psn),
	MEMBER(access),
	MEMBER(timeout_ms),
	MEMBER(pkey_index),
	MEMBER(waiting),
	MEMBER(spin_us),
	MEMBER(cq_depth),
	MEMBER(comp_vector),
	MEMBER(flow_label),
	MEMBER(keepalive_ms),
	MEMBER(max_dest_rd_atomic),
	MEMBER(src_path_bits),
	MEMBER(static_rate),
};

#define COUNT (sizeof(offsets) / sizeof(offsets[0]))

struct words {
	uint32_t list[COUNT];
};

static struct words load(const struct pier_channel_attr *attr)
{
	struct words words;

	for (size_t i = 0; i < COUNT; i++)
		memcpy(&words.list[i], (const char *)attr + offsets[i],
		       sizeof(words.list[i]));
	return words;
}

static void store(const struct words *words, struct pier_channel_attr *attr)
{
	for (size_t i = 0; i < COUNT; i++)
		memcpy((char *)attr + offsets[i], &words->list[i],
		       sizeof(words->list[i]));
}

static int take_options(PyObject *keywords, struct pier_channel_attr *attr)
{
	PyObject *options = PyDict_GetItemString(keywords, "options"); /* borrowed */
	const char *text = options ? PyUnicode_AsUTF8AndSize(options, NULL) : NULL;

	if (!options)
		return 0;
	if (!text || pier_py_check(pier_channel_attr_parse(attr, text)) < 0)
		return -1;
	return PyDict_DelItemString(keywords, "options");
}

int pier_py_channel_attr_take(PyObject *keywords, const char *others,
			      struct pier_channel_attr *attr)
{
	struct words words;
	PyObject *taken;

	if (!keywords)
		return 0;
	if (take_options(keywords, attr) < 0)
		return -1;
	words = load(attr);
	taken = pier_py_call("pier._attributes", "take", "(Osy#)", keywords, others,
			     (const char *)&words, (Py_ssize_t)sizeof(words));
	if (!taken)
		return -1;
	memcpy(&words, PyBytes_AsString(taken), sizeof(words));
	store(&words, attr);
	Py_DECREF(taken);
	return 0;
}

PyObject *pier_py_channel_attr_record(const struct pier_channel_attr *attr)
{
	const struct words words = load(attr);

	return pier_py_call("pier._attributes", "record", "(y#)", (const char *)&words,
			    (Py_ssize_t)sizeof(words));
}
