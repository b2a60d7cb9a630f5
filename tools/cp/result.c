/* SPDX-License-Identifier: BSD-3-Clause */
#include <inttypes.h>
#include <stdio.h>

#include "result.h"
#include "json.h"
#include "printable.h"
#include "units.h"

static double bytes_per_second(const struct cp_result *result)
{
	double moved = (double)(result->bytes - result->kept);

	return result->seconds > 0 ? moved / result->seconds : 0;
}

static void print_reason(const char *name, const struct cp_report *report)
{
	if (report->reason[0])
		print_line(stdout, "the path to %s memory is %s; %s", name, report->path,
			   report->reason);
}

static void print_side_summary(const struct cp_report *report)
{
	print_safely(stdout, report->memory);
	fputs(" memory", stdout);
	if (report->device[0]) {
		fputs(" on ", stdout);
		print_safely(stdout, report->device);
	}
	fputs(" (", stdout);
	print_safely(stdout, report->path);
	fputc(')', stdout);
}

/* How many of several were copied to. */
static uint32_t count_destinations(const struct cp_result *result)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < result->destination_count; i++)
		count += !result->failures[i].status;
	return count;
}

static void print_loss(const char **before, const char *what, uint32_t files)
{
	if (!files)
		return;
	printf("%s%s %" PRIu32, *before, what, files);
	*before = ", ";
}

/* A line only if there are any. */
static void print_losses(const struct cp_losses *losses)
{
	const char *before = "metadata not copied, by number of files: ";
	const char *first = before;

	print_loss(&before, "owner or group", losses->owners);
	print_loss(&before, "set-ID bits", losses->set_ids);
	print_loss(&before, "ACL", losses->acls);
	print_loss(&before, "extended attributes", losses->attributes);
	print_loss(&before, "hard links", losses->hard_links);
	if (before != first)
		putchar('\n');
}

void print_result(const struct cp_result *result)
{
	char rate[32];

	format_rate(bytes_per_second(result), rate, sizeof(rate));
	if (result->destination_count > 1)
		printf("%" PRIu32 " destinations, ", count_destinations(result));
	if (result->settings->tree)
		printf("%" PRIu32 " %s", result->files,
		       result->files == 1 ? "file" : "files");
	if (result->left_out)
		printf(" (%" PRIu32 " not copied)", result->left_out);
	if (result->settings->tree)
		fputs(", ", stdout);
	printf("%" PRIu64 " bytes ", result->bytes);
	if (result->kept)
		printf("(%" PRIu64 " kept) ", result->kept);
	printf("in %.2f s, %s, %s: ", result->seconds, rate,
	       !result->settings->verify ? "not verified"
	       : result->in_memory	 ? "verified as read"
					 : "verified");
	print_side_summary(&result->source_report);
	fputs(" -> ", stdout);
	print_side_summary(&result->destination_report);
	fputc('\n', stdout);
	print_losses(&result->losses);
	if (!result->verbose)
		return;
	print_reason("source", &result->source_report);
	print_reason("destination", &result->destination_report);
}

static void print_side_json(struct json *json, const char *name,
			    const struct operand *place, const struct cp_report *report)
{
	json_open(json, name, '{');
	json_string(json, "host", place->host[0] ? place->host : NULL);
	json_string(json, "file", place->path);
	json_string(json, "device", report->device[0] ? report->device : NULL);
	json_string(json, "memory", report->memory[0] ? report->memory : NULL);
	json_string(json, "path", report->path[0] ? report->path : NULL);
	json_string(json, "why", report->reason[0] ? report->reason : NULL);
	json_close(json, '}');
}

static void print_losses_json(struct json *json, const struct cp_losses *losses)
{
	json_open(json, "not_kept", '{');
	json_uint(json, "owner", losses->owners);
	json_uint(json, "set_id", losses->set_ids);
	json_uint(json, "acl", losses->acls);
	json_uint(json, "xattr", losses->attributes);
	json_uint(json, "hard_link", losses->hard_links);
	json_close(json, '}');
}

/* The first that was copied to, if any was. */
static const struct operand *find_destination(const struct cp_result *result)
{
	for (uint32_t i = 0; result->failures && i < result->destination_count; i++)
		if (!result->failures[i].status)
			return &result->destinations[i];
	return result->destinations;
}

static void print_destinations_json(struct json *json, const struct cp_result *result)
{
	json_open(json, "destinations", '[');
	for (uint32_t i = 0; i < result->destination_count; i++) {
		const struct failure *failure = &result->failures[i];

		json_open(json, NULL, '{');
		json_string(json, "host", result->destinations[i].host);
		json_string(json, "file", result->destinations[i].path);
		json_uint(json, "exit_status", (uint64_t)failure->status);
		json_string(json, "error", failure->status ? failure->text : NULL);
		json_close(json, '}');
	}
	json_close(json, ']');
}

void print_result_json(const struct cp_result *result)
{
	const struct cp_settings *settings = result->settings;
	struct json json = { .file = stdout, .line = true };
	bool failed = result->failure->status != 0;

	json_open(&json, NULL, '{');
	json_string(&json, "event", failed ? "error" : "end");
	json_bool(&json, "ok", !failed);
	json_uint(&json, "exit_status", (uint64_t)result->failure->status);
	json_string(&json, "error", failed ? result->failure->text : NULL);
	print_side_json(&json, "source", result->source, &result->source_report);
	print_side_json(&json, "destination", find_destination(result),
			&result->destination_report);
	if (result->failures)
		print_destinations_json(&json, result);
	json_uint(&json, "files", result->files);
	json_uint(&json, "left_out", result->left_out);
	print_losses_json(&json, &result->losses);
	json_uint(&json, "chunk", settings->chunk);
	json_uint(&json, "depth", settings->depth);
	if (result->arrived) {
		json_uint(&json, "bytes", result->bytes);
		json_uint(&json, "kept", result->kept);
		json_double(&json, "seconds", result->seconds);
		json_double(&json, "bytes_per_second", bytes_per_second(result));
		json_string(&json, "checksum", settings->verify ? "poly1305" : NULL);
	}
	json_bool(&json, "verified", result->arrived && settings->verify);
	json_bool(&json, "as_read", result->in_memory);
	json_close(&json, '}');
}
