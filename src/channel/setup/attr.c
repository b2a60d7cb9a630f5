/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attr.h"
#include "channel/recv/srq_post.h"
#include "core/error.h"
#include "core/extensible.h"
#include "core/text.h"
#include "device/device.h"
#include "device/gid_table.h"
#include "endpoint.h"

enum {
	RETRIES_MOST = 7,	/* retry counts are 3 bits */
	LONGEST_SPIN = 1000000, /* in microseconds; PIER_WAIT_POLL serves longer waits */
	KNOWN_ACCESS = PIER_ACCESS_SHARED | PIER_ACCESS_REMOTE_ATOMIC |
		       PIER_ACCESS_RELAXED_ORDERING,
};

PIER_ASSERT_NO_PADDING(channel_attr, context);

static const char attributes[] = "channel attributes";

/* A member of the struct that is a number. */
struct member {
	size_t offset;
	const char *name, *key; /* in sentences; in text, or NULL */
	uint32_t usual;		/* PIER_UNSET: none until the queue pair is made */
	uint32_t last;		/* the highest value */
	const char *why_last;	/* NULL: the range is for text only, or unlimited */
	/* In struct ibv_device_attr; 0: none. The range is then 1 to that limit. */
	size_t limit;
};

#define AT(member) offsetof(struct pier_channel_attr, member)
#define MEMBER(member, key, usual, last, why_last)              \
	{                                                       \
		AT(member), #member, key, usual, last, why_last \
	}
#define LIMITED(member, limit)                                            \
	{                                                                 \
		AT(member), #member, NULL, 16, 0, "the device's " #limit, \
			offsetof(struct ibv_device_attr, limit)           \
	}

static const struct member members[] = {
	MEMBER(port, "port", 1, UINT8_MAX, NULL),
	MEMBER(gid_index, "gid", PIER_GID_ANY, PIER_GID_INDEXES - 1, NULL),
	MEMBER(mtu, "mtu", 0, 4096, NULL),
	MEMBER(traffic_class, "tc", PIER_TRAFFIC_CLASS_PORT, UINT8_MAX, "8 bits"),
	MEMBER(service_level, "sl", 0, 15, "4 bits"),
	MEMBER(pkey_index, "pkey", 0, UINT16_MAX, NULL),
	MEMBER(hop_limit, "hop_limit", 64, UINT8_MAX, "8 bits"),
	MEMBER(flow_label, "flow_label", 0, 0xfffff, "20 bits"),
	MEMBER(timeout, "timeout", 18, 31, "5 bits"),
	MEMBER(retry_count, "retry", RETRIES_MOST, RETRIES_MOST, "3 bits"),
	MEMBER(rnr_retry_count, "rnr_retry", RETRIES_MOST, RETRIES_MOST, "3 bits"),
	MEMBER(min_rnr_timer, "rnr_timer", 12, 31, "5 bits"),
	MEMBER(max_rd_atomic, "rd_atomic", 16, UINT8_MAX, "8 bits"),
	MEMBER(max_dest_rd_atomic, NULL, PIER_UNSET, UINT8_MAX, "8 bits"),
	MEMBER(psn, NULL, PIER_UNSET, 0xffffff, "24 bits"),
	MEMBER(keepalive_ms, NULL, 0, INT32_MAX, "31 bits"),
	MEMBER(max_inline, NULL, 0, 0, NULL),
	MEMBER(spin_us, NULL, 50, 0, NULL),
	MEMBER(cq_depth, NULL, 0, 0, NULL),
	MEMBER(src_path_bits, NULL, 0, 0, NULL),
	MEMBER(static_rate, NULL, 0, 0, NULL),
	LIMITED(max_send_wr, max_qp_wr),
	LIMITED(max_recv_wr, max_qp_wr),
	LIMITED(max_send_sge, max_sge),
	LIMITED(max_recv_sge, max_sge),
};

enum {
	MEMBERS = sizeof(members) / sizeof(members[0]),
};

static uint32_t *value_of(struct pier_channel_attr *attr, const struct member *member)
{
	return (uint32_t *)((char *)attr + member->offset);
}

/* siw has 6 elements, qedr 4. 0: none. */
static uint32_t limit_of(const struct ibv_device_attr *device,
			 const struct member *member)
{
	return member->limit ? *(const uint32_t *)((const char *)device + member->limit)
			     : 0;
}

/* Set what the caller and the environment left unset. */
static void set_defaults(struct pier_channel_attr *attr,
			 const struct ibv_device_attr *device)
{
	for (size_t i = 0; i < MEMBERS; i++)
		if (*value_of(attr, &members[i]) == PIER_UNSET)
			*value_of(attr, &members[i]) = pier_clamp_to_limit(
				members[i].usual, limit_of(device, &members[i]));
	if (attr->access & PIER_ACCESS_UNSET)
		attr->access = (attr->access & ~PIER_ACCESS_UNSET) | PIER_ACCESS_SHARED;
	if (attr->timeout_ms == PIER_TIMEOUT_DEFAULT)
		attr->timeout_ms = 30000;
	if (attr->waiting == PIER_WAIT_UNSET)
		attr->waiting = PIER_WAIT_ADAPTIVE;
	/* COMPST_ERROR_RETRY in rxe_comp.c: 7 is not counted down. */
	if (pier_is_rxe(device) && attr->retry_count == RETRIES_MOST)
		attr->retry_count = RETRIES_MOST - 1;
}

/* NULL: text sets no member by this key. */
static const struct member *find_key(const char *key, size_t length)
{
	for (size_t i = 0; i < MEMBERS; i++)
		if (members[i].key && strlen(members[i].key) == length &&
		    memcmp(members[i].key, key, length) == 0)
			return &members[i];
	return NULL;
}

enum {
	KEY_LIST_SIZE = 256,
	LONGEST_SHOWN = 80,
};

static int shown_length(size_t length)
{
	return length < LONGEST_SHOWN ? (int)length : LONGEST_SHOWN;
}

static int refuse_key(const char *source, const char *key, size_t length)
{
	char keys[KEY_LIST_SIZE] = "";

	for (size_t i = 0; i < MEMBERS; i++)
		if (members[i].key)
			pier_append_text(keys, sizeof(keys), "%s%s", i ? ", " : "",
					 members[i].key);
	return pier_fail(EINVAL, "%s: \"%.*s\" is not KEY=NUMBER; the keys are %s",
			 source, shown_length(length), key, keys);
}

/* Read all of the text as a number: no sign, no blank, no octal. */
static bool read_number(const char *text, size_t length, uint32_t last,
			uint32_t *ret_value)
{
	bool is_hex = length > 2 && text[0] == '0' && text[1] == 'x';
	const char *digits = is_hex ? "0123456789abcdefABCDEF" : "0123456789";
	size_t prefix = is_hex ? 2 : 0;
	unsigned long value;

	if (length == prefix || length - prefix > 9 ||
	    strspn(text + prefix, digits) < length - prefix)
		return false;
	value = strtoul(text + prefix, NULL, is_hex ? 16 : 10);
	*ret_value = (uint32_t)value;
	return value <= last;
}

/* One "KEY=NUMBER" of this length. */
static int read_setting(const char *source, const char *text, size_t length,
			struct pier_channel_attr *attr)
{
	size_t key_length = strcspn(text, "=,");
	const struct member *member = key_length < length ? find_key(text, key_length)
							  : NULL;

	if (!member)
		return refuse_key(source, text, length);
	if (!read_number(text + key_length + 1, length - key_length - 1, member->last,
			 value_of(attr, member)))
		return pier_fail(EINVAL, "%s: \"%.*s\": %s is a number from 0 to %u",
				 source, shown_length(length), text, member->key,
				 member->last);
	return 0;
}

/* Read a text into attributes, of which all others stay unset. */
static int read_text(const char *source, const char *text,
		     struct pier_channel_attr *ret_attr)
{
	int error = 0;

	pier_channel_attr_init(ret_attr);
	while (text && *text && !error) {
		size_t length = strcspn(text, ",");

		error = read_setting(source, text, length, ret_attr);
		text += length + (text[length] == ',');
	}
	return error;
}

int pier_read_environment(struct pier_channel_attr *ret_attr)
{
	return read_text("PIER_CHANNEL", secure_getenv("PIER_CHANNEL"), ret_attr);
}

/* All members with a key are in the first version of the struct, which any caller has. */
static void copy_settings(struct pier_channel_attr *from, struct pier_channel_attr *to,
			  bool replace)
{
	for (size_t i = 0; i < MEMBERS; i++)
		if (*value_of(from, &members[i]) != PIER_UNSET &&
		    (replace || *value_of(to, &members[i]) == PIER_UNSET))
			*value_of(to, &members[i]) = *value_of(from, &members[i]);
}

int pier_channel_attr_parse(struct pier_channel_attr *attr, const char *text)
{
	PIER_REFUSE_NULL(attr, text);
	struct pier_channel_attr given;
	int error = read_text(attributes, text, &given);

	if (!error)
		copy_settings(&given, attr, true);
	return error;
}

int pier_read_channel_attr(const struct pier_channel_attr *attr,
			   const struct ibv_device_attr *device,
			   struct pier_channel_attr *ret_attr)
{
	struct pier_channel_attr known, environment;
	int error = PIER_READ_ATTR(attributes, channel_attr, attr,
				   PIER_SIZE_UP_TO(channel_attr, pkey_index), &known);

	if (!error)
		error = pier_read_environment(&environment);
	if (error)
		return error;
	copy_settings(&environment, &known, false);
	set_defaults(&known, device);
	*ret_attr = known;
	return 0;
}

int pier_check_range(const char *what, const char *name, uint32_t value, uint32_t first,
		     uint32_t last, const char *whose)
{
	if (value >= first && value <= last)
		return 0;
	return pier_fail(EINVAL, "%s: %s %u is not in %u to %u (%s)", what, name, value,
			 first, last, whose);
}

static int check_mtu(uint32_t mtu)
{
	if (mtu == 0 || pier_mtu_valid(mtu))
		return 0;
	return pier_fail(EINVAL,
			 "channel attributes: mtu %u is not 256, 512, 1024, 2048, 4096 "
			 "or 0 (the port's)",
			 mtu);
}

static int check_access(uint32_t access)
{
	if ((access & ~(uint32_t)KNOWN_ACCESS) == 0)
		return 0;
	return pier_fail(EINVAL, "channel attributes: access %#x has unknown flags %#x",
			 access, access & ~(uint32_t)KNOWN_ACCESS);
}

static int check_timeout(int timeout_ms)
{
	if (timeout_ms > 0)
		return 0;
	return pier_fail(EINVAL, "channel attributes: timeout_ms %d is not more than 0",
			 timeout_ms);
}

int pier_check_waiting(enum pier_waiting waiting, uint32_t spin_us)
{
	/* A caller's enum can be any number. */
	if (waiting == PIER_WAIT_UNSET || (unsigned int)waiting > PIER_WAIT_EVENT)
		return pier_fail(EINVAL, "waiting %u is not a value of enum pier_waiting",
				 (unsigned int)waiting);
	if (spin_us > LONGEST_SPIN)
		return pier_fail(EINVAL, "spin_us %u is more than %d", spin_us,
				 LONGEST_SPIN);
	return 0;
}

/* No device has as many. */
static uint32_t saturate_entries(uint64_t entries)
{
	return entries < UINT32_MAX ? (uint32_t)entries : UINT32_MAX;
}

uint32_t pier_request_entries(const struct pier_channel_attr *attr)
{
	return saturate_entries((uint64_t)attr->max_send_wr +
				(attr->srq ? 0 : attr->max_recv_wr) +
				(attr->keepalive_ms > 0));
}

static uint32_t needed_entries(const struct pier_channel_attr *attr)
{
	return saturate_entries((uint64_t)pier_request_entries(attr) +
				(attr->srq ? attr->srq->max_wr : 0));
}

uint32_t pier_cq_entries(const struct pier_channel_attr *attr)
{
	return attr->cq_depth ? attr->cq_depth : needed_entries(attr);
}

static int check_queues(const struct pier_channel_attr *attr,
			const struct ibv_device_attr *device)
{
	uint32_t entries = needed_entries(attr);

	if (attr->srq && entries > (uint32_t)device->max_cqe)
		return pier_fail(EINVAL,
				 "channel attributes: max_send_wr %u and the %u receives "
				 "of the shared queue need a completion queue of %u; "
				 "the device has %d",
				 attr->max_send_wr, attr->srq->max_wr, entries,
				 device->max_cqe);
	if (entries > (uint32_t)device->max_cqe || entries > PIER_QUEUE_MAX)
		return pier_fail(EINVAL,
				 "channel attributes: max_send_wr %u and max_recv_wr %u "
				 "need a completion queue of %u; the device has %d, and "
				 "a channel at most %d",
				 attr->max_send_wr, attr->max_recv_wr, entries,
				 device->max_cqe, PIER_QUEUE_MAX);
	if (attr->cq_depth == 0 || attr->cq)
		return 0;
	return pier_check_range(attributes, "cq_depth", attr->cq_depth, entries,
				(uint32_t)device->max_cqe,
				"what both queues need, and the device's max_cqe");
}

static int check_keepalive(const struct pier_channel_attr *attr,
			   const struct ibv_device_attr *device)
{
	if (attr->keepalive_ms == 0)
		return 0;
	if (attr->timeout == 0)
		return pier_fail(EINVAL,
				 "channel attributes: keepalive_ms %u with timeout 0: "
				 "nothing would ever fail",
				 attr->keepalive_ms);
	if (attr->max_send_wr >= (uint32_t)device->max_qp_wr)
		return pier_fail(EINVAL,
				 "channel attributes: keepalive_ms needs a place in the "
				 "send queue: max_send_wr %u must be less than the "
				 "device's max_qp_wr, %d",
				 attr->max_send_wr, device->max_qp_wr);
	return 0;
}

/* enum ibv_rate has gaps, and new values are added. */
static int check_rate(uint32_t rate)
{
	if (rate == IBV_RATE_MAX ||
	    (rate <= UINT8_MAX && ibv_rate_to_mbps((enum ibv_rate)rate) > 0))
		return 0;
	return pier_fail(
		EINVAL,
		"channel attributes: static_rate %u is not a value of enum ibv_rate",
		rate);
}

static int check_ranges(struct pier_channel_attr attr,
			const struct ibv_device_attr *device)
{
	int error = pier_check_range(attributes, "port", attr.port, 1,
				     device->phys_port_cnt, "the device's ports");

	/* The queue pair has none of its own. */
	if (attr.srq)
		attr.max_recv_wr = attr.max_recv_sge = 1;
	for (size_t i = 0; i < MEMBERS && !error; i++) {
		const struct member *member = &members[i];
		uint32_t value = *value_of(&attr, member);
		bool may_be_unset = member->usual == PIER_UNSET;

		if (member->why_last && (value != PIER_UNSET || !may_be_unset))
			error = pier_check_range(
				attributes, member->name, value, member->limit ? 1 : 0,
				member->limit ? limit_of(device, member) : member->last,
				member->why_last);
	}
	return error;
}

static int check_members(const struct pier_channel_attr *attr,
			 const struct ibv_device_attr *device)
{
	int error = check_ranges(*attr, device);

	if (!error)
		error = check_rate(attr->static_rate);
	if (!error)
		error = check_keepalive(attr, device);
	if (!error)
		error = check_queues(attr, device);
	if (!error)
		error = check_mtu(attr->mtu);
	if (!error)
		error = check_access(attr->access);
	if (!error)
		error = pier_check_waiting(attr->waiting, attr->spin_us);
	return error ? error : check_timeout(attr->timeout_ms);
}

int pier_check_channel_attr(const struct pier_channel_attr *attr,
			    const struct ibv_device_attr *device)
{
	const char *text = secure_getenv("PIER_CHANNEL");
	int error = check_members(attr, device);

	if (!error || !text || !text[0])
		return error;
	return pier_fail(-error,
			 "%s (PIER_CHANNEL=%s sets what the program leaves unset)",
			 pier_error_message(), text);
}

static const char *port_state_name(enum ibv_port_state state)
{
	static const char *const names[] = {
		[IBV_PORT_NOP] = "NOP",	      [IBV_PORT_DOWN] = "DOWN",
		[IBV_PORT_INIT] = "INIT",     [IBV_PORT_ARMED] = "ARMED",
		[IBV_PORT_ACTIVE] = "ACTIVE", [IBV_PORT_ACTIVE_DEFER] = "ACTIVE_DEFER",
	};

	return (unsigned int)state < sizeof(names) / sizeof(names[0]) ? names[state]
								      : "unknown";
}

int pier_check_channel_port(const struct pier_channel_attr *attr,
			    const struct ibv_port_attr *port)
{
	int gids = port->gid_tbl_len < PIER_GID_INDEXES ? port->gid_tbl_len
							: PIER_GID_INDEXES;

	if (port->state != IBV_PORT_ACTIVE)
		return pier_fail(
			ENETDOWN,
			"port %u is not active but %s: check the cable, the link "
			"and (InfiniBand) the subnet manager",
			attr->port, port_state_name(port->state));
	if (attr->gid_index != PIER_GID_ANY && attr->gid_index >= (uint32_t)gids)
		return pier_fail(EINVAL,
				 "channel attributes: gid_index %u is neither "
				 "PIER_GID_ANY nor one of the %d of port %u",
				 attr->gid_index, gids, attr->port);
	/* Some ports do not report the size of their table; index 0 always exists. */
	if (attr->pkey_index && attr->pkey_index >= port->pkey_tbl_len)
		return pier_fail(EINVAL,
				 "channel attributes: pkey_index %u is not one of the %u "
				 "of port %u",
				 attr->pkey_index, port->pkey_tbl_len, attr->port);
	return pier_check_range(attributes, "src_path_bits", attr->src_path_bits, 0,
				(UINT32_C(1) << (port->lmc & 7)) - 1,
				"2^LMC of the port");
}
