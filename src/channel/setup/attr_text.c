/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attr_text.h"
#include "device/gid_table.h"
#include "core/error.h"

enum {
	KEY_LIST_SIZE = 256,
	LONGEST_SHOWN = 80,
};

/* A member that text can set, and its highest value. */
struct setting {
	const char *key;
	size_t offset, size;
	uint32_t last;
};

#define SETTING(key, member, last)                                               \
	{                                                                        \
		key, offsetof(struct pier_channel_attr, member),                 \
			sizeof(((struct pier_channel_attr *)NULL)->member), last \
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

static void *member_of(struct pier_channel_attr *attr, const struct setting *setting)
{
	return (char *)attr + setting->offset;
}

static void set_member(struct pier_channel_attr *attr, const struct setting *setting,
		       uint32_t value)
{
	if (setting->size == sizeof(uint8_t))
		*(uint8_t *)member_of(attr, setting) = (uint8_t)value;
	else
		memcpy(member_of(attr, setting), &value, sizeof(value));
}

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

/* SETTINGS: no setting has this key. */
static size_t find_setting(const char *key, size_t length)
{
	size_t i = 0;

	while (i < SETTINGS && (strlen(settings[i].key) != length ||
				memcmp(settings[i].key, key, length) != 0))
		i++;
	return i;
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

static int set_members(const char *source, const char *text,
		       struct pier_channel_attr *attr)
{
	struct given given;
	int error = read_text(source, text, &given);

	for (size_t i = 0; i < SETTINGS && !error; i++)
		if (given.is_given[i])
			set_member(attr, &settings[i], given.values[i]);
	return error;
}

/* All members are in the first version of the struct, so any caller's has them. */
int pier_channel_attr_parse(struct pier_channel_attr *attr, const char *text)
{
	return text ? set_members("channel attributes", text, attr)
		    : pier_fail(EINVAL, "channel attributes: the text is NULL");
}

int pier_read_environment(struct pier_channel_attr *attr)
{
	const char *text = secure_getenv("PIER_CHANNEL");

	return text ? set_members("PIER_CHANNEL", text, attr) : 0;
}

int pier_apply_environment(struct pier_channel_attr *attr)
{
	const char *text = secure_getenv("PIER_CHANNEL");
	struct pier_channel_attr usual;
	struct given given;
	int error = text ? read_text("PIER_CHANNEL", text, &given) : 0;

	pier_channel_attr_init(&usual);
	for (size_t i = 0; text && i < SETTINGS && !error; i++)
		if (given.is_given[i] &&
		    memcmp(member_of(attr, &settings[i]), member_of(&usual, &settings[i]),
			   settings[i].size) == 0)
			set_member(attr, &settings[i], given.values[i]);
	return error;
}
