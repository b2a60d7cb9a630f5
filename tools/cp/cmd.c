/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "commands.h"
#include "hub.h"
#include "json.h"
#include "option.h"
#include "options.h"
#include "path.h"
#include "printable.h"
#include "remote/control.h"
#include "remote/start.h"
#include "source.h"
#include "party.h"
#include "units.h"

/* Functions that return int return 0, or -1 with the failure set. */

/* The client side of a copy. */
struct copy {
	const struct cp_options *options;
	enum cp_role role; /* of the client */
	const char *host;  /* of the server; NULL: this host */
	struct cp_side side;
	struct shell shell; /* set if host is not NULL */
	struct peers peers;
	struct request request;
	struct failure failure;
	struct control control;
	struct remote remote;
	/* With several servers, the hub between them, and its thread. */
	struct hub hub; /* its node i + 1 is destination i */
	pthread_t thread;
	bool running;
	struct progress progress;
	struct standard standard; /* if the options name it */
	struct party party;
	double seconds;
	bool arrived; /* at one of the destinations or more, whatever was left out */
};

static struct node *node_of(const struct copy *copy, uint32_t index)
{
	return &copy->hub.nodes[index + 1];
}

/* Look up the destinations' addresses, which may take seconds. */
static int open_chain(struct copy *copy)
{
	const struct cp_options *options = copy->options;
	uint32_t count = options->destination_count;

	copy->hub = (struct hub){ .nodes = calloc(count + 1, sizeof(struct node)),
				  .count = count + 1,
				  .timeout_ms = options->settings.timeout_ms,
				  .dry_run = options->settings.dry_run,
				  .notices = &copy->party.notices };
	if (!copy->hub.nodes)
		return fail(&copy->failure, EXIT_FILE, "out of memory");
	for (uint32_t i = 0; i < count; i++) {
		/* Standard input can be read once. */
		node_of(copy, i)->retried = options->standard;
		find_peer_addresses(options->destinations[i].host, &copy->shell,
				    copy->side.device, &node_of(copy, i)->addresses);
		fail(&node_of(copy, i)->result, EXIT_PEER, "the copy ended before it");
	}
	return 0;
}

/* All at once: starting each takes a second. */
static void start_servers(struct copy *copy)
{
	const struct cp_options *options = copy->options;
	struct request own = copy->request;

	for (uint32_t i = 0; i < options->destination_count; i++) {
		struct node *node = node_of(copy, i);
		const char *host = options->destinations[i].host;

		if (node->state == NODE_OUT)
			continue;
		node->control = cp_control(copy->hub.timeout_ms, &node->failure);
		node->control.peer = host;
		node->control.outbox = &node->outbox;
		if (start_remote(&node->remote, host, &copy->shell, options->remote_pier,
				 &node->control) < 0) {
			struct failure unnamed = node->failure;

			/* Nobody can be told. */
			control_close(&node->control);
			node->failure = (struct failure){ 0 };
			fail(&node->failure, unnamed.status, "%s: %s", host,
			     unnamed.text);
			lose_node(&copy->hub, i + 1);
			continue;
		}
		/* The server may take its time to start, and then finds this in its pipe.
		 */
		snprintf(own.side.path, sizeof(own.side.path), "%s",
			 options->destinations[i].path);
		if (control_send_preamble(&node->control) < 0 ||
		    send_message(&node->control, FRAME_REQUEST, &own) < 0)
			lose_node(&copy->hub, i + 1);
	}
}

static int connect_hub(struct copy *copy)
{
	struct control *control = &copy->control;
	struct node *sender = &copy->hub.nodes[0];
	int to[2] = { -1, -1 }, from[2] = { -1, -1 };

	if (pipe2(to, O_CLOEXEC) < 0 || pipe2(from, O_CLOEXEC) < 0) {
		fail(control->failure, EXIT_PEER, "pipe: %s", strerror(errno));
		close_fd(to[0]);
		close_fd(to[1]);
		return -1;
	}
	*sender = (struct node){ .control = cp_control(copy->hub.timeout_ms,
						       &sender->failure) };
	sender->control.outbox = &sender->outbox;
	sender->control.in = to[0];
	sender->control.out = from[1];
	control->in = from[0];
	control->out = to[1];
	control->preamble_read = sender->control.preamble_read = true;
	return 0;
}

/*
 * Start the servers of all destinations that are left, send them the request, and connect
 * to the hub. One that cannot be started is left out; fails if none is left, or on a
 * signal. Sets copy->peers to those that this host may have to connect to.
 */
static int start_chain(struct copy *copy)
{
	struct control *control = &copy->control;
	struct hub *hub = &copy->hub;
	const struct failure *loss;
	struct frame frame;
	int error;

	/* It gets its pipes below. */
	hub->nodes[0].state = NODE_OUT;
	hub->phase = HUB_STARTING;
	hub->held.type = FRAME_NONE;
	hub->sender_closed = false;
	hub->again = false;
	hub->last = 0;
	start_servers(copy);
	/* None is left: that is the destinations' failure, and not this side's. */
	if (hub->last) {
		loss = &hub->nodes[hub->last].failure;
		control->failure_from_peer = true;
		return fail(control->failure, loss->status, "%s", loss->text);
	}
	if (connect_hub(copy) < 0)
		return -1;
	list_addresses(hub, 0, copy->peers.list, sizeof(copy->peers.list));
	if (!copy->peers.list[0])
		strcpy(copy->peers.list, "none");
	/* From now on the nodes are the thread's. */
	error = pthread_create(&copy->thread, NULL, run_hub, hub);
	if (error)
		return fail(control->failure, EXIT_FILE, "cannot start a thread: %s",
			    strerror(error));
	copy->running = true;
	return control_expect(control, FRAME_READY, &frame);
}

/* Wait for the hub and the servers. */
static void end_chain(struct copy *copy)
{
	uint64_t closed_ns;

	control_close(&copy->control);
	if (copy->running)
		pthread_join(copy->thread, NULL);
	copy->running = false;
	if (copy->hub.nodes[0].control.protocol)
		control_close(&copy->hub.nodes[0].control);
	for (uint32_t i = 0; i < copy->options->destination_count; i++)
		control_close(&node_of(copy, i)->control);
	/* All pipes are closed, so the servers end at the same time. */
	closed_ns = now_ns();
	for (uint32_t i = 0; i < copy->options->destination_count; i++) {
		struct node *node = node_of(copy, i);

		node->control.waited_ms = (int)((now_ns() - closed_ns) / 1000000);
		end_remote(&node->remote, &node->control);
		if (node->state == NODE_DONE)
			node->result = (struct failure){ 0 };
		else if (node->failure.status)
			node->result = node->failure;
	}
}

/*
 * Plan the next attempt: without those that failed before anything was copied; or, when
 * all others are done, with one whose connection failed. That one is alone: it has no
 * other neighbour then than the sender. Returns whether there is to be an attempt.
 */
static bool plan_attempt(struct copy *copy)
{
	bool again = copy->hub.again, found = false;

	for (uint32_t i = 0; i < copy->options->destination_count; i++) {
		struct node *node = node_of(copy, i);
		struct node renewed = { .state = NODE_STARTED,
					.retried = node->retried || !again,
					.result = node->result,
					.addresses = node->addresses };

		if (again ? node->state == NODE_OUT : found || !node->to_be_retried) {
			node->state = NODE_OUT;
			continue;
		}
		*node = renewed;
		found = true;
	}
	return found;
}

/* Set the failure if a destination was left out, and there is no other failure. */
static void report_chain(struct copy *copy)
{
	uint32_t lost = 0, count = copy->options->destination_count;
	int status = 0; /* of the first */

	for (uint32_t i = count; i-- > 0;) {
		const struct failure *result = &node_of(copy, i)->result;

		lost += result->status != 0;
		status = result->status ? result->status : status;
	}
	copy->arrived = lost < count && !copy->failure.status;
	if (lost)
		fail(&copy->failure, status, "not copied to %u of %u destinations", lost,
		     count);
}

static void fill_side(struct cp_side *side, const struct operand *place,
		      const char *memory, const char *device)
{
	snprintf(side->path, sizeof(side->path), "%s", place->path);
	snprintf(side->memory, sizeof(side->memory), "%s", memory);
	snprintf(side->device, sizeof(side->device), "%s", device ? device : "");
}

static void plan_copy(struct copy *copy)
{
	const struct cp_options *options = copy->options;
	const char *remote_device = options->remote_device;
	const char *device = secure_getenv("PIER_DEVICE");
	struct cp_side *source, *destination;
	bool sender = !options->source.host[0] && !options->destinations[0].standard;

	copy->host = sender ? options->destinations[0].host : options->source.host;
	if (!copy->host[0])
		copy->host = NULL;
	if (!remote_device && !copy->host)
		remote_device = options->device;
	copy->role = sender ? CP_SENDER : CP_RECEIVER;
	copy->request.role = sender ? CP_RECEIVER : CP_SENDER;
	copy->request.settings = options->settings;
	/* Inside one host, with memory that the user chose, and no NIC. */
	copy->request.settings.ipc = !copy->host && options->source_memory[0] &&
				     options->destination_memory[0] && !options->device &&
				     !options->remote_device && !(device && device[0]);
	/* Fails only if the kernel has no such call; nothing could be verified then. */
	if (getrandom(copy->request.settings.secret, CP_SECRET_SIZE, 0) != CP_SECRET_SIZE)
		abort();
	source = sender ? &copy->side : &copy->request.side;
	destination = sender ? &copy->request.side : &copy->side;
	fill_side(source, &options->source, options->source_memory,
		  sender ? options->device : remote_device);
	fill_side(destination, &options->destinations[0], options->destination_memory,
		  sender ? remote_device : options->device);
}

/* Find out that a file is missing, or standard input or output is, before ssh asks for a
 * password. */
static int try_files(struct copy *copy)
{
	const struct words *operands = &copy->options->sources;
	struct source source = { .fd = -1, .content = -1 };
	int result = 0;

	if (copy->options->standard)
		return copy->role == CP_SENDER
			       ? open_standard_input(&copy->standard, &copy->failure)
			       : open_standard_output(&copy->standard, &copy->failure);
	if (copy->role != CP_SENDER)
		return 0;
	if (!copy->request.settings.tree) {
		result = open_source(&source, AT_FDCWD, copy->side.path, &copy->failure);
		close_source(&source);
	}
	for (uint32_t i = 0; result == 0 && i < operands->count; i++) {
		int found = open_path(AT_FDCWD, operands->all[i], O_PATH);

		if (found < 0)
			result = fail(&copy->failure, EXIT_FILE, "cannot read %s: %s",
				      operands->all[i], path_error(errno));
		close_fd(found);
	}
	return result;
}

/* Before open_signals(): a name lookup can take seconds, and Ctrl-C must end it. */
static int prepare_copy(struct copy *copy)
{
	if (try_files(copy) < 0)
		return -1;
	if (!copy->host)
		return 0;
	if (split_shell(copy->options->rsh, copy->options->port, &copy->shell,
			&copy->failure) < 0)
		return -1;
	if (copy->options->settings.chain)
		return open_chain(copy);
	find_peer_addresses(copy->host, &copy->shell, copy->side.device, &copy->peers);
	return 0;
}

static void begin_copy(struct copy *copy, int signal_fd)
{
	const struct cp_options *options = copy->options;

	copy->failure = (struct failure){ 0 };
	copy->control = cp_control(options->settings.timeout_ms, &copy->failure);
	copy->control.signal_fd = signal_fd;
	copy->control.peer = options->settings.chain ? NULL : copy->host;
	copy->party = (struct party){
		.role = copy->role,
		.local = !copy->host,
		.settings = &copy->request.settings,
		.side = &copy->side,
		.client = true,
		.quiet = options->quiet,
		.standard = options->standard ? &copy->standard : NULL,
		.operands = &options->sources,
		.patterns = &options->patterns,
		.root = AT_FDCWD,
		.requested = copy->role == CP_RECEIVER ? copy->request.side.path : NULL,
		.control = &copy->control,
		.failure = &copy->failure,
		.progress = &copy->progress,
		.naming.wanted = options->verbose && !options->json && !options->quiet &&
				 !options->settings.dry_run
	};
	begin_party(&copy->party);
	open_notices(&copy->party.notices, &copy->party.budget);
}

/* Whether the attempt ended because of a destination, or of the way to one. */
static bool is_of_destination(const struct copy *copy)
{
	return copy->control.failure_from_peer || copy->failure.status == EXIT_PEER;
}

/* One attempt. */
static void try_chain(struct copy *copy)
{
	const struct hub *hub = &copy->hub;

	if (start_chain(copy) == 0) {
		connect_only_to(&copy->peers);
		run_sender(&copy->party);
	}
	control_send_failure(&copy->control);
	close_party(&copy->party);
	end_chain(copy);
	show_notices(&copy->party);
	/* That of the last one that was left out names the destination. */
	if (hub->last && is_of_destination(copy))
		copy->failure = hub->nodes[hub->last].failure;
}

/* What the copy that has arrived consists of. */
static void keep_result(struct party *to, const struct party *from)
{
	to->state = from->state;
	to->report = from->report;
	to->peer.report = from->peer.report;
	to->size = from->size;
	to->files = from->files;
	to->in_memory = from->in_memory;
	to->losses = from->losses;
}

static void run_chains(struct copy *copy)
{
	const struct hub *hub = &copy->hub;
	struct party arrived = { .size = 0 };
	uint32_t left_out = 0;
	bool again, retried;

	do {
		try_chain(copy);
		retried = hub->nodes[hub->last].to_be_retried;
		/* One that is tried again meets the same files of the source. */
		if (copy->party.left_out > left_out)
			left_out = copy->party.left_out;
		if (copy->party.state == CONNECTION_DONE)
			keep_result(&arrived, &copy->party);
		again = (!copy->failure.status || is_of_destination(copy)) &&
			plan_attempt(copy);
		/* Drop the failure of a destination, which report_chain() counts. */
		if (is_of_destination(copy)) {
			if (!hub->again)
				print_error("pier cp: %s%s", copy->failure.text,
					    retried ? "; it is tried once more at the end"
						    : "");
			copy->failure = (struct failure){ 0 };
		}
		if (again) {
			forget_peers();
			close_notices(&copy->party.notices);
			begin_copy(copy, copy->control.signal_fd);
		}
	} while (again);
	copy->party.left_out = left_out;
	report_chain(copy);
	/* The last attempt may have failed where it began. */
	if (arrived.state == CONNECTION_DONE)
		keep_result(&copy->party, &arrived);
}

static int run_copy(struct copy *copy)
{
	struct control *control = &copy->control;

	if (prepare_copy(copy) < 0)
		return -1;
	control->signal_fd = open_signals(&copy->failure);
	if (control->signal_fd < 0)
		return -1;
	if (copy->options->settings.chain) {
		run_chains(copy);
		return 0;
	}
	if (start_remote(&copy->remote, copy->host, &copy->shell,
			 copy->options->remote_pier, control) < 0 ||
	    control_exchange_preambles(control) < 0)
		return -1;
	if (copy->host)
		connect_only_to(&copy->peers);
	if (send_message(control, FRAME_REQUEST, &copy->request) < 0 ||
	    (copy->role == CP_RECEIVER && copy->request.settings.tree &&
	     send_words(control, &copy->options->sources, &copy->options->patterns) < 0))
		return -1;
	return copy->role == CP_SENDER ? run_sender(&copy->party)
				       : run_receiver(&copy->party);
}

static const struct {
	const char *text, *json;
} loss_names[LOSSES] = {
	[LOSS_OWNER] = { "owner or group", "owner" },
	[LOSS_SET_ID] = { "set-ID bits", "set_id" },
	[LOSS_ACL] = { "ACL", "acl" },
	[LOSS_XATTR] = { "extended attributes", "xattr" },
	[LOSS_HARD_LINK] = { "hard links", "hard_link" },
};

/* A line only if there are any. */
static void print_losses(const struct cp_losses *losses)
{
	const char *before = "metadata not copied, by number of files: ";

	for (int i = 0; i < LOSSES; i++) {
		if (!losses->files[i])
			continue;
		printf("%s%s %" PRIu32, before, loss_names[i].text, losses->files[i]);
		before = ", ";
	}
	if (before[0] == ',')
		putchar('\n');
}

static double bytes_per_second(const struct copy *copy)
{
	double moved = (double)(copy->party.size - copy->party.kept.bytes);

	return copy->seconds > 0 ? moved / copy->seconds : 0;
}

static const struct cp_report *source_report(const struct copy *copy)
{
	return copy->role == CP_SENDER ? &copy->party.report : &copy->party.peer.report;
}

static const struct cp_report *destination_report(const struct copy *copy)
{
	return copy->role == CP_SENDER ? &copy->party.peer.report : &copy->party.report;
}

static void print_reason(const char *name, const struct cp_report *report)
{
	if (report->reason[0])
		print_line(stdout, "the path to %s memory is %s; %s", name, report->path,
			   report->reason);
}

static void print_side_summary(const struct cp_report *report)
{
	char text[sizeof(*report)];

	snprintf(text, sizeof(text), "%s memory%s%s (%s)", report->memory,
		 report->device[0] ? " on " : "", report->device, report->path);
	print_safely(stdout, text);
}

/* Of a tree: the files that are not counted in the bytes. */
static void print_exceptions(const struct party *party)
{
	const char *before = " (";

	if (party->same.count) {
		printf("%s%" PRIu32 " same", before, party->same.count);
		before = ", ";
	}
	if (party->left_out)
		printf("%s%" PRIu32 " not copied", before, party->left_out);
	if (party->same.count || party->left_out)
		putchar(')');
}

static void print_result(const struct copy *copy)
{
	const struct cp_options *options = copy->options;
	const struct cp_settings *settings = &options->settings;
	const struct party *party = &copy->party;
	uint32_t destinations = 0;
	char rate[32];

	format_rate(bytes_per_second(copy), rate, sizeof(rate));
	for (uint32_t i = 0; settings->chain && i < options->destination_count; i++)
		destinations += !node_of(copy, i)->result.status;
	if (settings->chain)
		printf("%" PRIu32 " destinations, ", destinations);
	if (settings->tree || party->same.count) {
		printf("%" PRIu32 " %s", party->files,
		       party->files == 1 ? "file" : "files");
		print_exceptions(party);
		fputs(", ", stdout);
	}
	printf("%" PRIu64 " bytes ", party->size);
	if (party->kept.bytes)
		printf("(%" PRIu64 " kept) ", party->kept.bytes);
	printf("in %.2f s, %s, %s: ", copy->seconds, rate,
	       !settings->verify  ? "not verified"
	       : party->in_memory ? "verified as read"
				  : "verified");
	print_side_summary(source_report(copy));
	fputs(" -> ", stdout);
	print_side_summary(destination_report(copy));
	fputc('\n', stdout);
	print_losses(&party->losses);
	if (!options->verbose)
		return;
	print_reason("source", source_report(copy));
	print_reason("destination", destination_report(copy));
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

/* The first that was copied to, if any was. */
static const struct operand *find_destination(const struct copy *copy)
{
	const struct cp_options *options = copy->options;

	for (uint32_t i = 0; copy->hub.nodes && i < options->destination_count; i++)
		if (!node_of(copy, i)->result.status)
			return &options->destinations[i];
	return options->destinations;
}

static void print_destinations_json(struct json *json, const struct copy *copy)
{
	const struct cp_options *options = copy->options;

	json_open(json, "destinations", '[');
	for (uint32_t i = 0; i < options->destination_count; i++) {
		const struct failure *failure = &node_of(copy, i)->result;

		json_open(json, NULL, '{');
		json_string(json, "host", options->destinations[i].host);
		json_string(json, "file", options->destinations[i].path);
		json_uint(json, "exit_status", (uint64_t)failure->status);
		json_string(json, "error", failure->status ? failure->text : NULL);
		json_close(json, '}');
	}
	json_close(json, ']');
}

static void print_result_json(const struct copy *copy)
{
	const struct cp_settings *settings = &copy->options->settings;
	const struct party *party = &copy->party;
	struct json json = { .file = stdout, .line = true };
	bool failed = copy->failure.status != 0;
	bool arrived = copy->arrived && !settings->dry_run;

	json_open(&json, NULL, '{');
	json_string(&json, "event", failed ? "error" : "end");
	json_bool(&json, "ok", !failed);
	json_uint(&json, "exit_status", (uint64_t)copy->failure.status);
	json_string(&json, "error", failed ? copy->failure.text : NULL);
	print_side_json(&json, "source", &copy->options->source, source_report(copy));
	print_side_json(&json, "destination", find_destination(copy),
			destination_report(copy));
	if (copy->hub.nodes)
		print_destinations_json(&json, copy);
	json_uint(&json, "files", party->files);
	json_uint(&json, "left_out", party->left_out);
	json_uint(&json, "same", party->same.count);
	json_open(&json, "not_kept", '{');
	for (int i = 0; i < LOSSES; i++)
		json_uint(&json, loss_names[i].json, party->losses.files[i]);
	json_close(&json, '}');
	json_uint(&json, "chunk", settings->chunk);
	json_uint(&json, "depth", settings->depth);
	if (arrived) {
		json_uint(&json, "bytes", party->size);
		json_uint(&json, "kept", party->kept.bytes);
		json_double(&json, "seconds", copy->seconds);
		json_double(&json, "bytes_per_second", bytes_per_second(copy));
		json_string(&json, "checksum", settings->verify ? "poly1305" : NULL);
	}
	json_bool(&json, "verified", arrived && settings->verify);
	json_bool(&json, "as_read", party->in_memory);
	json_close(&json, '}');
}

static void report_copy(const struct copy *copy)
{
	const struct cp_options *options = copy->options;

	if (copy->party.repairs && !options->quiet && !copy->failure.status)
		print_error("pier cp: the connection broke and was restored (times: %u)",
			    copy->party.repairs);
	if (copy->party.lost[0] && !options->quiet)
		print_error("pier cp: %s", copy->party.lost);
	if (copy->failure.status)
		print_failure(&copy->failure);
	if (options->json)
		print_result_json(copy);
	else if (!options->quiet && copy->arrived && !options->settings.dry_run)
		print_result(copy);
}

static int copy_file(const struct cp_options *options)
{
	struct copy copy = { .options = options, .standard = { .fd = -1, .stop = -1 } };
	uint64_t start = now_ns();
	uint32_t left_out;

	plan_copy(&copy);
	begin_copy(&copy, -1);
	copy.progress.json = options->json;
	copy.progress.shown = options->progress || (isatty(STDERR_FILENO) &&
						    !options->quiet && !options->json);
	run_copy(&copy);
	control_send_failure(&copy.control);
	close_party(&copy.party);
	end_remote(&copy.remote, &copy.control);
	close_notices(&copy.party.notices);
	if (!options->settings.chain)
		copy.arrived = !copy.failure.status;
	left_out = copy.party.left_out;
	if (left_out)
		fail(&copy.failure, EXIT_FILE, "%u file%s %s", left_out,
		     left_out == 1 ? "" : "s",
		     options->settings.dry_run ? "would not be copied; all others would"
		     : left_out == 1	       ? "was not copied; all others were"
					       : "were not copied; all others were");
	copy.seconds = (double)(now_ns() - start) / 1e9;
	report_copy(&copy);
	close_standard(&copy.standard);
	free(copy.hub.nodes);
	return copy.failure.status;
}

int command_cp(int argc, char **argv)
{
	struct cp_options options;
	int status;

	if (init_digests() < 0) {
		print_error("pier: cannot initialise libcrypto");
		return EXIT_FILE;
	}
	if (argc > 1 && strcmp(argv[1], "--server") == 0)
		return serve_copy(argc, argv);
	if (parse_cp_options(argc, argv, &options, &status) == 0) {
		if (options.verbose)
			print_library_log();
		status = copy_file(&options);
	}
	free_cp_options(&options);
	return status;
}
