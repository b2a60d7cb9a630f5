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
#include "device/device.h"
#include "device/gid_table.h"
#include "endpoint.h"

/* Conversions of times in struct pier_channel_attr. */

enum {
	LONGEST_EXPONENT = 31, /* timeout and min_rnr_timer are 5 bits */
	LONGEST_RETRY = 7,     /* retry counts are 3 bits */
	LONGEST_SERVICE_LEVEL = 15,
	LONGEST_PSN = 0xffffff,
	LONGEST_SPIN = 1000000, /* in microseconds; PIER_WAIT_POLL serves longer waits */
	LONGEST_FLOW_LABEL = 0xfffff, /* 20 bits, as in IPv6 */
	LONGEST_RD_ATOMIC = 255,      /* 8 bits of ibv_qp_attr */
	/* The size of the first version of the struct. */
	FIRST_SIZE = offsetof(struct pier_channel_attr, pkey_index) + sizeof(uint32_t),
	KNOWN_ACCESS = PIER_ACCESS_SHARED | PIER_ACCESS_REMOTE_ATOMIC |
		       PIER_ACCESS_RELAXED_ORDERING,
};

_Static_assert(sizeof(struct pier_channel_attr) ==
		       offsetof(struct pier_channel_attr, context) + sizeof(void *),
	       "no padding at the end, where a new field would not change the size");

static void set_default(uint32_t *member, uint32_t value)
{
	if (*member == PIER_UNSET)
		*member = value;
}

static uint32_t clamp_default(uint32_t usual, int limit)
{
	return limit > 0 && usual > (uint32_t)limit ? (uint32_t)limit : usual;
}

/*
 * Set what the caller and the environment left unset. The device's limits hold for each
 * default: siw has 6 elements, qedr 4, not 16. psn, max_dest_rd_atomic and comp_vector
 * stay unset until the queue pair is made.
 */
static void set_defaults(struct pier_channel_attr *attr,
			 const struct ibv_device_attr *device)
{
	set_default(&attr->port, 1);
	set_default(&attr->max_send_wr, clamp_default(16, device->max_qp_wr));
	set_default(&attr->max_recv_wr, clamp_default(16, device->max_qp_wr));
	set_default(&attr->max_send_sge, clamp_default(16, device->max_sge));
	set_default(&attr->max_recv_sge, clamp_default(16, device->max_sge));
	set_default(&attr->max_inline, 0);
	set_default(&attr->mtu, 0);
	set_default(&attr->max_rd_atomic, 16);
	set_default(&attr->timeout, 18);
	set_default(&attr->retry_count, LONGEST_RETRY);
	set_default(&attr->rnr_retry_count, LONGEST_RETRY);
	set_default(&attr->min_rnr_timer, 12);
	set_default(&attr->service_level, 0);
	set_default(&attr->traffic_class, PIER_TRAFFIC_CLASS_PORT);
	set_default(&attr->hop_limit, 64);
	set_default(&attr->gid_index, PIER_GID_ANY);
	if (attr->access & PIER_ACCESS_UNSET)
		attr->access = (attr->access & ~PIER_ACCESS_UNSET) | PIER_ACCESS_SHARED;
	if (attr->timeout_ms == PIER_TIMEOUT_DEFAULT)
		attr->timeout_ms = 30000;
	set_default(&attr->pkey_index, 0);
	if (attr->waiting == PIER_WAIT_UNSET)
		attr->waiting = PIER_WAIT_ADAPTIVE;
	set_default(&attr->spin_us, 50);
	set_default(&attr->cq_depth, 0);
	set_default(&attr->flow_label, 0);
	set_default(&attr->keepalive_ms, 0);
	set_default(&attr->src_path_bits, 0);
	set_default(&attr->static_rate, 0);
	/* COMPST_ERROR_RETRY in rxe_comp.c: 7 is not counted down. */
	if (pier_is_rxe(device) && attr->retry_count == LONGEST_RETRY)
		attr->retry_count = LONGEST_RETRY - 1;
}

/* A member that text can set, and its highest value. */
struct setting {
	const char *key;
	size_t offset;
	uint32_t last;
};

#define SETTING(key, member, last)                                    \
	{                                                             \
		key, offsetof(struct pier_channel_attr, member), last \
	}

static const struct setting settings[] = {
	SETTING("port", port, UINT8_MAX),
	SETTING("gid", gid_index, PIER_GID_INDEXES - 1),
	SETTING("mtu", mtu, 4096),
	SETTING("tc", traffic_class, UINT8_MAX),
	SETTING("sl", service_level, 15),
	SETTING("pkey", pkey_index, UINT16_MAX),
	SETTING("hop_limit", hop_limit, UINT8_MAX),
	SETTING("flow_label", flow_label, 0xfffff),
	SETTING("timeout", timeout, 31),
	SETTING("retry", retry_count, 7),
	SETTING("rnr_retry", rnr_retry_count, 7),
	SETTING("rnr_timer", min_rnr_timer, 31),
	SETTING("rd_atomic", max_rd_atomic, UINT8_MAX),
};

enum {
	SETTINGS = sizeof(settings) / sizeof(settings[0]),
};

/* The values in a text. */
struct given {
	uint32_t values[SETTINGS];
	bool is_given[SETTINGS];
};

/* SETTINGS: no setting has this key. */
static size_t find_setting(const char *key, size_t length)
{
	size_t i = 0;

	while (i < SETTINGS && (strlen(settings[i].key) != length ||
				memcmp(settings[i].key, key, length) != 0))
		i++;
	return i;
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
	size_t used = 0;

	for (size_t i = 0; i < SETTINGS; i++)
		used += (size_t)snprintf(keys + used, sizeof(keys) - used, "%s%s",
					 i ? ", " : "", settings[i].key);
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
			struct given *given)
{
	size_t key_length = strcspn(text, "=,");
	size_t i = key_length < length ? find_setting(text, key_length) : SETTINGS;

	if (i == SETTINGS)
		return refuse_key(source, text, length);
	if (!read_number(text + key_length + 1, length - key_length - 1, settings[i].last,
			 &given->values[i]))
		return pier_fail(EINVAL, "%s: \"%.*s\": %s is a number from 0 to %u",
				 source, shown_length(length), text, settings[i].key,
				 settings[i].last);
	given->is_given[i] = true;
	return 0;
}

static int read_text(const char *source, const char *text, struct given *ret_given)
{
	int error = 0;

	*ret_given = (struct given){ .values = { 0 } };
	while (*text && !error) {
		size_t length = strcspn(text, ",");

		error = read_setting(source, text, length, ret_given);
		text += length + (text[length] == ',');
	}
	return error;
}

static uint32_t *member_of(struct pier_channel_attr *attr, const struct setting *setting)
{
	return (uint32_t *)((char *)attr + setting->offset);
}

/*
 * Set the members that are unset to the values that PIER_CHANNEL gives them.
 *
 * Errors: -EINVAL, as for pier_channel_attr_parse().
 */
static int apply_environment(struct pier_channel_attr *attr)
{
	const char *text = secure_getenv("PIER_CHANNEL");
	struct given given;
	int error = text ? read_text("PIER_CHANNEL", text, &given) : 0;

	for (size_t i = 0; text && i < SETTINGS && !error; i++)
		if (given.is_given[i])
			set_default(member_of(attr, &settings[i]), given.values[i]);
	return error;
}

int pier_read_channel_attr(const struct pier_channel_attr *attr,
			   const struct ibv_device_attr *device,
			   struct pier_channel_attr *ret_attr)
{
	struct pier_channel_attr known;
	int error = 0;

	pier_channel_attr_init(&known);
	if (attr)
		error = pier_read_extensible("channel attributes",
					     "pier_channel_attr_init()", attr, FIRST_SIZE,
					     sizeof(known), &known);
	if (!error)
		error = apply_environment(&known);
	if (error)
		return error;
	set_defaults(&known, device);
	*ret_attr = known;
	return 0;
}

static int check_range(const char *name, uint32_t value, uint32_t first, uint32_t last,
		       const char *whose)
{
	if (value >= first && value <= last)
		return 0;
	return pier_fail(EINVAL, "channel attributes: %s %u is not in %u to %u (%s)",
			 name, value, first, last, whose);
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
	return check_range("cq_depth", attr->cq_depth, entries, (uint32_t)device->max_cqe,
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

static int check_ranges(const struct pier_channel_attr *attr,
			const struct ibv_device_attr *device)
{
	uint32_t max_wr = (uint32_t)device->max_qp_wr,
		 max_sge = (uint32_t)device->max_sge;
	struct {
		const char *name;
		uint32_t value, first, last;
		const char *whose;
	} ranges[] = {
		{ "port", attr->port, 1, device->phys_port_cnt, "the device's ports" },
		{ "max_send_wr", attr->max_send_wr, 1, max_wr, "the device's max_qp_wr" },
		{ "max_recv_wr", attr->srq ? 1 : attr->max_recv_wr, 1, max_wr,
		  "the device's max_qp_wr" },
		{ "max_send_sge", attr->max_send_sge, 1, max_sge,
		  "the device's max_sge" },
		{ "max_recv_sge", attr->srq ? 1 : attr->max_recv_sge, 1, max_sge,
		  "the device's max_sge" },
		{ "max_rd_atomic", attr->max_rd_atomic, 0, UINT8_MAX, "8 bits" },
		{ "timeout", attr->timeout, 0, LONGEST_EXPONENT, "5 bits" },
		{ "retry_count", attr->retry_count, 0, LONGEST_RETRY, "3 bits" },
		{ "rnr_retry_count", attr->rnr_retry_count, 0, LONGEST_RETRY, "3 bits" },
		{ "min_rnr_timer", attr->min_rnr_timer, 0, LONGEST_EXPONENT, "5 bits" },
		{ "service_level", attr->service_level, 0, LONGEST_SERVICE_LEVEL,
		  "4 bits" },
		{ "traffic_class", attr->traffic_class, 0, UINT8_MAX, "8 bits" },
		{ "hop_limit", attr->hop_limit, 0, UINT8_MAX, "8 bits" },
		{ "flow_label", attr->flow_label, 0, LONGEST_FLOW_LABEL, "20 bits" },
		{ "keepalive_ms", attr->keepalive_ms, 0, INT32_MAX, "31 bits" },
	};
	int error = 0;

	for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]) && !error; i++)
		error = check_range(ranges[i].name, ranges[i].value, ranges[i].first,
				    ranges[i].last, ranges[i].whose);
	return error;
}

int pier_check_channel_attr(const struct pier_channel_attr *attr,
			    const struct ibv_device_attr *device)
{
	int error = check_ranges(attr, device);

	if (!error && attr->psn != PIER_UNSET)
		error = check_range("psn", attr->psn, 0, LONGEST_PSN, "24 bits");
	if (!error && attr->max_dest_rd_atomic != PIER_UNSET)
		error = check_range("max_dest_rd_atomic", attr->max_dest_rd_atomic, 0,
				    LONGEST_RD_ATOMIC, "8 bits");
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
	return check_range("src_path_bits", attr->src_path_bits, 0,
			   (UINT32_C(1) << (port->lmc & 7)) - 1, "2^LMC of the port");
}

static int set_members(const char *source, const char *text,
		       struct pier_channel_attr *attr)
{
	struct given given;
	int error = read_text(source, text, &given);

	for (size_t i = 0; i < SETTINGS && !error; i++)
		if (given.is_given[i])
			*member_of(attr, &settings[i]) = given.values[i];
	return error;
}

/* All members are in the first version of the struct, so any caller's has them. */
int pier_channel_attr_parse(struct pier_channel_attr *attr, const char *text)
{
	PIER_REFUSE_NULL(attr, text);
	return set_members("channel attributes", text, attr);
}

int pier_read_environment(struct pier_channel_attr *attr)
{
	const char *text = secure_getenv("PIER_CHANNEL");

	return text ? set_members("PIER_CHANNEL", text, attr) : 0;
}
