/* SPDX-License-Identifier: BSD-3-Clause */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "option.h"
#include "options.h"
#include "path.h"
#include "remote/control.h"
#include "remote/start.h"
#include "party.h"

enum {
	/* Until the request sets it. */
	FIRST_TIMEOUT_MS = 30000
};

struct server_options {
	const char *under; /* NULL: serve all paths */
	bool server, read_only, write_only;
	bool pass_on; /* although it is restricted */
	bool local;   /* the client is on this host: do not listen */
};

static int take_under(const struct given_option *given, void *member)
{
	const char **under = member;

	if (*under)
		return refuse_usage("--under was given twice");
	*under = given->value;
	return 0;
}

#define AT(member) offsetof(struct server_options, member)

static const struct option_row rows[] = {
	{ 0, "server", NULL, NULL, option_on, AT(server) },
	{ 0, "under", "DIR", NULL, take_under, AT(under) },
	{ 0, "read-only", NULL, NULL, option_on, AT(read_only) },
	{ 0, "write-only", NULL, NULL, option_on, AT(write_only) },
	{ 0, "pass-on", NULL, NULL, option_on, AT(pass_on) },
	{ 0, "local", NULL, NULL, option_on, AT(local) },
};

static const struct option_table server_option_table = {
	.command = "pier cp",
	.rows = rows,
	.count = sizeof(rows) / sizeof(rows[0]),
};

static int parse_server_options(int argc, char **argv, struct server_options *options)
{
	int status,
		count = parse_options(&server_option_table, argc, argv, options, &status);

	if (count < 0)
		return -1;
	if (count > 0)
		return refuse_usage("a server takes no paths on the command "
				    "line: the client sends them");
	if (options->read_only && options->write_only)
		return refuse_usage(
			"--read-only and --write-only are mutually exclusive");
	if ((options->read_only || options->write_only) && !options->under)
		return refuse_usage("--read-only and --write-only require --under");
	return 0;
}

static int take_request(struct control *control, struct request *ret_request)
{
	control->signal_fd = open_signals(control->failure);
	if (control->signal_fd < 0 || take_descriptors(control) < 0 ||
	    control_exchange_preambles(control) < 0 ||
	    expect_message(control, FRAME_REQUEST, ret_request) < 0)
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
	/* So would the answers about sizes and times. */
	if (request->settings.skip_same && options->write_only)
		return fail(failure, EXIT_FILE,
			    "the server is write-only, which rules out --skip-same");
	if (!request->side.path[0])
		return fail(failure, EXIT_FILE,
			    "empty path: SRC and DST must name files");
	if (request->settings.ipc && !options->local)
		return fail(failure, EXIT_PEER,
			    "the client wants ipc, which is for copies inside one host");
	if (request->settings.chain &&
	    (request->role == CP_SENDER || options->local || request->settings.partial ||
	     request->settings.skip_same))
		return fail(failure, EXIT_PEER,
			    "the client wants several destinations in a way that this "
			    "version does not know");
	/* A fault plan makes calls of the server's process fail or wait. */
	if (options->under && strstr(request->side.device, PIER_FAULT_DEVICE ":"))
		return fail(failure, EXIT_DEVICE,
			    "the server does not accept a fault plan for its device");
	return 0;
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
	struct party party = {
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

	open_notices(&party.notices, &party.budget);
	if (take_request(control, &request) == 0 &&
	    check_request(options, &request, control->failure) == 0 &&
	    /* The sources of a tree follow the request. */
	    (request.role != CP_SENDER || !request.settings.tree ||
	     receive_words(control, &operands, &patterns) == 0) &&
	    refuse_own_descriptors(&request, &operands, root, control->failure) == 0) {
		party.role = request.role;
		begin_party(&party);
		if (party.role == CP_SENDER)
			run_sender(&party);
		else
			run_receiver(&party);
	}
	control_send_failure(control);
	close_party(&party);
	close_notices(&party.notices);
	free_words(&operands);
	free_words(&patterns);
}

int serve_copy(int argc, char **argv)
{
	struct server_options options = { .under = NULL };
	struct failure failure = { 0 };
	struct control control = cp_control(FIRST_TIMEOUT_MS, &failure);
	int root = AT_FDCWD;

	if (parse_server_options(argc, argv, &options) < 0)
		return EXIT_USAGE;
	if (options.under)
		root = open_root(options.under, &failure);
	if (failure.status) {
		print_failure(&failure);
		return failure.status;
	}
	if (!options.local)
		listen_for_client(NULL);
	serve_request(&options, root, &control);
	control_close(&control);
	/* In all other cases the client reports the failure to the user. */
	if (failure.status && failure.status < EXIT_SIGNAL && control.peer_closed &&
	    !control.failure_from_peer)
		print_failure(&failure);
	close_fd(control.signal_fd);
	close_fd(root);
	return failure.status;
}
