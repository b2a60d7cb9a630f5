/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "chain.h"
#include "cmd.h"
#include "transfer.h"
#include "remote/network.h"
#include "option.h"
#include "options.h"
#include "path.h"
#include "receive.h"
#include "remote/start.h"
#include "result.h"
#include "send.h"
#include "server.h"
#include "remote/control.h"
#include "source.h"
#include "units.h"

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
	struct chain chain; /* in place of the server, if there are several */
	struct progress progress;
	struct transfer transfer;
	bool arrived; /* at one of the destinations or more, whatever was left out */
};

static void fill_side(struct cp_side *side, const struct operand *place,
		      const char *memory, const char *device)
{
	snprintf(side->path, sizeof(side->path), "%s", place->path);
	snprintf(side->memory, sizeof(side->memory), "%s", memory);
	snprintf(side->device, sizeof(side->device), "%s", device ? device : "");
}

/* Inside one host, with memory that the user chose, and no NIC. */
static bool wants_ipc(const struct cp_options *options, const char *host)
{
	const char *device = secure_getenv("PIER_DEVICE");

	return !host && options->source_memory[0] && options->destination_memory[0] &&
	       !options->device && !options->remote_device && !(device && device[0]);
}

static void plan_copy(struct copy *copy)
{
	const struct cp_options *options = copy->options;
	const char *remote_device = options->remote_device;
	struct cp_side *source, *destination;
	const char *source_device, *destination_device;
	bool sender = !options->source.host[0];

	copy->host = sender ? options->destinations[0].host : options->source.host;
	if (!copy->host[0])
		copy->host = NULL;
	if (!remote_device && !copy->host)
		remote_device = options->device;
	copy->role = sender ? CP_SENDER : CP_RECEIVER;
	copy->request.role = sender ? CP_RECEIVER : CP_SENDER;
	copy->request.settings = options->settings;
	copy->request.settings.ipc = wants_ipc(options, copy->host);
	randombytes_buf(copy->request.settings.secret,
			sizeof(copy->request.settings.secret));
	source = sender ? &copy->side : &copy->request.side;
	destination = sender ? &copy->request.side : &copy->side;
	source_device = sender ? options->device : remote_device;
	destination_device = sender ? remote_device : options->device;
	fill_side(source, &options->source, options->source_memory, source_device);
	fill_side(destination, &options->destinations[0], options->destination_memory,
		  destination_device);
}

static int try_operands(const struct words *operands, struct failure *failure)
{
	for (uint32_t i = 0; i < operands->count; i++) {
		int found = open_path(AT_FDCWD, operands->all[i], O_PATH);

		if (found < 0)
			return fail(failure, EXIT_FILE, "cannot read %s: %s",
				    operands->all[i], path_error(errno));
		close(found);
	}
	return 0;
}

/* Find out that a file is missing before ssh asks for a password. */
static int try_source(struct copy *copy)
{
	struct source source = { .fd = -1, .content = -1 };
	int result;

	if (copy->role != CP_SENDER)
		return 0;
	if (copy->request.settings.tree)
		return try_operands(&copy->options->sources, &copy->failure);
	result = open_source(&source, AT_FDCWD, copy->side.path, &copy->failure);
	close_source(&source);
	return result;
}

/* Before open_signals(): a name lookup can take seconds, and Ctrl-C must end it. */
static int prepare_copy(struct copy *copy)
{
	if (try_source(copy) < 0)
		return -1;
	if (!copy->host)
		return 0;
	if (split_shell(copy->options->rsh, &copy->shell, &copy->failure) < 0)
		return -1;
	if (copy->options->settings.chain)
		return open_chain(&copy->chain, copy->options, &copy->shell,
				  copy->side.device, &copy->failure);
	find_peer_addresses(copy->host, &copy->shell, copy->side.device, &copy->peers);
	return 0;
}

static void begin_transfer(struct copy *copy)
{
	const struct cp_options *options = copy->options;

	copy->failure = (struct failure){ 0 };
	copy->control = (struct control){ .protocol = &cp_protocol,
					  .in = -1,
					  .out = -1,
					  .signal_fd = copy->control.signal_fd,
					  .timeout_ms = options->settings.timeout_ms,
					  .peer = options->settings.chain ? NULL
									  : copy->host,
					  .failure = &copy->failure };
	copy->transfer = (struct transfer){ .role = copy->role,
					    .settings = &copy->request.settings,
					    .side = &copy->side,
					    .local = !copy->host,
					    .client = true,
					    .quiet = options->quiet,
					    .operands = &options->sources,
					    .patterns = &options->patterns,
					    .root = AT_FDCWD,
					    .requested = copy->role == CP_RECEIVER
								 ? copy->request.side.path
								 : NULL,
					    .control = &copy->control,
					    .failure = &copy->failure,
					    .progress = &copy->progress };
	set_budget(&copy->transfer);
	open_notices(&copy->transfer.notices, &copy->transfer.budget);
}

static int run_chain(struct copy *copy)
{
	struct peers all = { .list = "" };

	if (start_chain(&copy->chain, &copy->request, &copy->transfer.notices,
			&copy->control, &all) < 0)
		return -1;
	connect_only_to(&all);
	return run_sender(&copy->transfer);
}

/* Whether the attempt ended because of a destination, or of the way to one. */
static bool is_of_destination(const struct copy *copy)
{
	return copy->control.failure_from_peer || copy->failure.status == EXIT_PEER;
}

/* Drop the failure of a destination, which report_chain() counts. */
static void set_aside(struct copy *copy, bool known, bool retried)
{
	if (!is_of_destination(copy))
		return;
	if (!known)
		print_error("pier cp: %s%s", copy->failure.text,
			    retried ? "; it is tried once more at the end" : "");
	copy->failure = (struct failure){ 0 };
}

/* One attempt. */
static void try_chain(struct copy *copy)
{
	const struct failure *loss;

	run_chain(copy);
	control_send_failure(&copy->control);
	close_transfer(&copy->transfer);
	end_chain(&copy->chain, &copy->control);
	show_notices(&copy->transfer);
	loss = find_last_loss(&copy->chain);
	/* It names the destination. */
	if (loss && is_of_destination(copy))
		copy->failure = *loss;
}

static void run_chains(struct copy *copy)
{
	struct chain *chain = &copy->chain;
	uint32_t left_out = 0;
	bool again, retried;

	do {
		try_chain(copy);
		retried = chain->hub.nodes[chain->hub.last].to_be_retried;
		/* One that is tried again meets the same files of the source. */
		if (copy->transfer.left_out > left_out)
			left_out = copy->transfer.left_out;
		again = (!copy->failure.status || is_of_destination(copy)) &&
			plan_attempt(chain);
		set_aside(copy, chain->hub.again, retried);
		if (again) {
			forget_peers();
			close_notices(&copy->transfer.notices);
			begin_transfer(copy);
		}
	} while (again);
	copy->transfer.left_out = left_out;
	copy->arrived = report_chain(chain, &copy->failure);
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
	if (send_request(control, &copy->request) < 0 ||
	    (copy->role == CP_RECEIVER && copy->request.settings.tree &&
	     send_words(control, &copy->options->sources, &copy->options->patterns) < 0))
		return -1;
	return copy->role == CP_SENDER ? run_sender(&copy->transfer)
				       : run_receiver(&copy->transfer);
}

static void finish_copy(struct copy *copy)
{
	control_send_failure(&copy->control);
	close_transfer(&copy->transfer);
	end_remote(&copy->remote, &copy->control);
}

static void report_copy(const struct copy *copy, double seconds)
{
	const struct cp_options *options = copy->options;
	bool sender = copy->role == CP_SENDER;
	struct cp_result result = {
		.failure = &copy->failure,
		.source = &options->source,
		.destinations = options->destinations,
		.destination_count = options->destination_count,
		.failures = copy->chain.failures,
		.settings = &options->settings,
		.source_report = sender ? copy->transfer.report
					: copy->transfer.peer.report,
		.destination_report = sender ? copy->transfer.peer.report
					     : copy->transfer.report,
		.bytes = copy->transfer.size,
		.kept = copy->transfer.kept.bytes,
		.files = copy->transfer.files,
		.left_out = copy->transfer.left_out,
		.in_memory = copy->transfer.in_memory,
		.losses = copy->transfer.losses,
		.seconds = seconds,
		.arrived = copy->arrived && !options->settings.dry_run,
		.verbose = options->verbose,
	};

	if (copy->transfer.repairs && !options->quiet && !copy->failure.status)
		print_error("pier cp: the connection broke and was restored (times: %u)",
			    copy->transfer.repairs);
	if (copy->transfer.lost[0] && !options->quiet)
		print_error("pier cp: %s", copy->transfer.lost);
	if (copy->failure.status)
		print_failure(&copy->failure);
	if (options->json)
		print_result_json(&result);
	else if (!options->quiet && result.arrived)
		print_result(&result);
}

static void fail_incomplete(struct copy *copy)
{
	uint32_t count = copy->transfer.left_out;

	fail(&copy->failure, EXIT_FILE, "%u file%s %s", count, count == 1 ? "" : "s",
	     copy->options->settings.dry_run ? "would not be copied; all others would"
	     : count == 1		     ? "was not copied; all others were"
					     : "were not copied; all others were");
}

static int copy_file(const struct cp_options *options)
{
	struct copy copy = { .options = options };
	uint64_t start = now_ns();

	plan_copy(&copy);
	copy.control.signal_fd = -1;
	begin_transfer(&copy);
	copy.progress.json = options->json;
	copy.progress.shown = options->progress || (isatty(STDERR_FILENO) &&
						    !options->quiet && !options->json);
	run_copy(&copy);
	finish_copy(&copy);
	close_notices(&copy.transfer.notices);
	if (!options->settings.chain)
		copy.arrived = !copy.failure.status;
	if (copy.transfer.left_out)
		fail_incomplete(&copy);
	report_copy(&copy, (double)(now_ns() - start) / 1e9);
	close_chain(&copy.chain);
	return copy.failure.status;
}

int command_cp(int argc, char **argv)
{
	struct cp_options options;
	int status;

	if (init_digests() < 0) {
		print_error("pier: cannot initialise libsodium or libcrypto");
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
