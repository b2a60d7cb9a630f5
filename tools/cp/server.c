/* SPDX-License-Identifier: BSD-3-Clause */
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "next_option.h"
#include "remote/network.h"
#include "path.h"
#include "server.h"
#include "receive.h"
#include "send.h"
#include "remote/control.h"
#include "remote/start.h"

enum {
	/* Until the request sets it. */
	FIRST_TIMEOUT_MS = 30000
};

struct server_options {
	const char *under; /* NULL: serve all paths */
	bool read_only, write_only;
	bool pass_on; /* although it is restricted */
	bool local;   /* the client is on this host: do not listen */
};

enum {
	OPTION_SERVER = 256,
	OPTION_UNDER,
	OPTION_READ_ONLY,
	OPTION_WRITE_ONLY,
	OPTION_PASS_ON,
	OPTION_LOCAL,
};

static const struct option server_option_names[] = {
	{ "server", no_argument, NULL, OPTION_SERVER },
	{ "under", required_argument, NULL, OPTION_UNDER },
	{ "read-only", no_argument, NULL, OPTION_READ_ONLY },
	{ "write-only", no_argument, NULL, OPTION_WRITE_ONLY },
	{ "pass-on", no_argument, NULL, OPTION_PASS_ON },
	{ "local", no_argument, NULL, OPTION_LOCAL },
	{ NULL, 0, NULL, 0 },
};

static int refuse_server_options(const char *complaint)
{
	print_error("pier cp: %s", complaint);
	return -1;
}

static int take_server_option(int option, struct server_options *options)
{
	switch (option) {
	case OPTION_SERVER:
		return 0;
	case OPTION_UNDER:
		if (options->under)
			return refuse_server_options("--under was given twice");
		options->under = optarg;
		return 0;
	case OPTION_READ_ONLY:
		options->read_only = true;
		return 0;
	case OPTION_WRITE_ONLY:
		options->write_only = true;
		return 0;
	case OPTION_PASS_ON:
		options->pass_on = true;
		return 0;
	case OPTION_LOCAL:
		options->local = true;
		return 0;
	default:
		return -1;
	}
}

static int parse_server_options(int argc, char **argv, struct server_options *ret_options)
{
	struct server_options options = { .under = NULL };
	int option;

	while ((option = next_option(argc, argv, ":", server_option_names)) != -1)
		if (take_server_option(option, &options) < 0)
			return -1;
	if (optind < argc)
		return refuse_server_options("a server takes no paths on the command "
					     "line: the client sends them");
	if (options.read_only && options.write_only)
		return refuse_server_options(
			"--read-only and --write-only are mutually exclusive");
	if ((options.read_only || options.write_only) && !options.under)
		return refuse_server_options(
			"--read-only and --write-only require --under");
	*ret_options = options;
	return 0;
}

static int take_request(struct control *control, struct request *ret_request)
{
	control->signal_fd = open_signals(control->failure);
	if (control->signal_fd < 0 || take_descriptors(control) < 0 ||
	    control_exchange_preambles(control) < 0 ||
	    receive_request(control, ret_request) < 0)
		return -1;
	control->timeout_ms = ret_request->settings.timeout_ms;
	return 0;
}

static int check_request(const struct server_options *options,
			 const struct request *request, struct failure *failure)
{
	if (request->role == CP_RECEIVER && options->read_only)
		return fail(failure, EXIT_FILE, "the server is read-only");
	if (request->role == CP_SENDER && options->write_only)
		return fail(failure, EXIT_FILE, "the server is write-only");
	/* The digests would let the client test guesses about what others sent. */
	if (request->settings.partial && options->write_only)
		return fail(failure, EXIT_FILE,
			    "the server is write-only, which rules out --continue");
	if (!request->side.path[0])
		return fail(failure, EXIT_FILE,
			    "empty path: SRC and DST must name files");
	if (request->settings.ipc && !options->local)
		return fail(failure, EXIT_PEER,
			    "the client wants ipc, which is for copies inside one host");
	if (request->settings.chain &&
	    (request->role == CP_SENDER || options->local || request->settings.partial))
		return fail(failure, EXIT_PEER,
			    "the client wants several destinations in a way that this "
			    "version does not know");
	/* A fault plan makes calls of the server's process fail or wait. */
	if (options->under && strstr(request->side.device, PIER_FAULT_DEVICE ":"))
		return fail(failure, EXIT_DEVICE,
			    "the server does not accept a fault plan for its device");
	return 0;
}

/* The sources of a tree follow the request. */
static int take_words(const struct request *request, struct words *operands,
		      struct words *patterns, struct control *control)
{
	if (request->role != CP_SENDER || !request->settings.tree)
		return 0;
	return receive_words(control, operands, patterns);
}

/* A server's descriptors are not those that the user means. */
static int refuse_own_descriptors(const struct request *request,
				  const struct words *operands, int root,
				  struct failure *failure)
{
	if (request->role != CP_SENDER)
		return 0;
	for (uint32_t i = 0; i < operands->count; i++)
		if (refuse_open_file(root, operands->all[i], true, failure) < 0)
			return -1;
	return refuse_open_file(root, request->side.path, true, failure);
}

static void serve_request(const struct server_options *options, int root,
			  struct control *control)
{
	struct words operands = { .count = 0 }, patterns = { .count = 0 };
	struct progress none = { .shown = false };
	struct request request;
	struct transfer transfer = {
		.settings = &request.settings,
		.side = &request.side,
		.local = options->local,
		.may_pass_on = !options->under || options->pass_on,
		.root = root,
		.operands = &operands,
		.patterns = &patterns,
		.control = control,
		.failure = control->failure,
		.progress = &none,
	};

	open_notices(&transfer.notices, &transfer.budget);
	if (take_request(control, &request) == 0 &&
	    check_request(options, &request, control->failure) == 0 &&
	    take_words(&request, &operands, &patterns, control) == 0 &&
	    refuse_own_descriptors(&request, &operands, root, control->failure) == 0) {
		transfer.role = request.role;
		set_budget(&transfer);
		if (transfer.role == CP_SENDER)
			run_sender(&transfer);
		else
			run_receiver(&transfer);
	}
	control_send_failure(control);
	close_transfer(&transfer);
	close_notices(&transfer.notices);
	free_words(&operands);
	free_words(&patterns);
}

static int run_server(const struct server_options *options, int root)
{
	struct failure failure = { 0 };
	struct control control = {
		.protocol = &cp_protocol,
		.in = -1,
		.out = -1,
		.signal_fd = -1,
		.timeout_ms = FIRST_TIMEOUT_MS,
		.failure = &failure,
	};

	if (!options->local)
		listen_for_client();
	serve_request(options, root, &control);
	control_close(&control);
	/* In all other cases the client reports the failure to the user. */
	if (failure.status && failure.status < EXIT_SIGNAL && control.peer_closed &&
	    !control.failure_from_peer)
		print_failure(&failure);
	if (control.signal_fd >= 0)
		close(control.signal_fd);
	return failure.status;
}

int serve_copy(int argc, char **argv)
{
	struct server_options options;
	struct failure failure = { 0 };
	int root = AT_FDCWD, status;

	if (parse_server_options(argc, argv, &options) < 0)
		return EXIT_USAGE;
	if (options.under)
		root = open_root(options.under, &failure);
	if (failure.status) {
		print_failure(&failure);
		return failure.status;
	}
	status = run_server(&options, root);
	if (root >= 0)
		close(root);
	return status;
}
