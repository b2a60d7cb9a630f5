/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "cp_network.h"
#include "cp_server.h"
#include "cp_signals.h"
#include "cp_transfer.h"

enum {
	/* Until the request tells. */
	FIRST_TIMEOUT_MS = 30000
};

/*
 * The protocol has its two descriptors to itself: whatever else writes to
 * standard output goes to standard error.
 */
static int take_descriptors(struct control *control)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	control->in = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	control->out = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	if (null < 0 || control->in < 0 || control->out < 0 ||
	    dup2(null, STDIN_FILENO) < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
		return fail(control->failure, EXIT_FILE,
			    "cannot take over standard input and output: %s",
			    strerror(errno));
	close(null);
	return 0;
}

static int take_request(struct control *control, struct request *ret_request)
{
	control->signal_fd = open_signals(control->failure);
	if (control->signal_fd < 0 || take_descriptors(control) < 0 ||
	    control_greet(control) < 0 || receive_request(control, ret_request) < 0)
		return -1;
	control->timeout_ms = ret_request->settings.timeout_ms;
	return 0;
}

static void serve(struct control *control)
{
	struct progress none = { .shown = false };
	struct request request;
	struct transfer transfer = {
		.settings = &request.settings,
		.side = &request.side,
		.control = control,
		.failure = control->failure,
		.progress = &none,
	};

	if (take_request(control, &request) == 0) {
		transfer.role = request.role;
		if (transfer.role == CP_SENDER)
			run_sender(&transfer);
		else
			run_receiver(&transfer);
	}
	control_tell(control);
	close_transfer(&transfer);
}

int serve_copy(bool local)
{
	struct failure failure = { 0 };
	struct control control = {
		.in = -1,
		.out = -1,
		.signal_fd = -1,
		.timeout_ms = FIRST_TIMEOUT_MS,
		.failure = &failure,
	};

	if (!local)
		listen_for_client();
	serve(&control);
	control_close(&control);
	/* Otherwise the client has heard it, and speaks to the user. */
	if (failure.status && failure.status < EXIT_SIGNAL && control.gone &&
	    !control.told)
		print_failure(&failure);
	if (control.signal_fd >= 0)
		close(control.signal_fd);
	return failure.status;
}
