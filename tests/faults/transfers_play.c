/* SPDX-License-Identifier: BSD-3-Clause */
/* Runs transfers of memory that the NIC cannot reach, with a failure. */
#include "transfers_expect.h"

#include "core/deadline.h"

enum {
	TRIES = 20,
};

static void keep_sentence(char *ret_sentence, size_t size, int error)
{
	snprintf(ret_sentence, size, "%s", error < 0 ? pier_error_message() : "");
}

static void wait_receiver(void)
{
	if (by(OVER_IN_TIME_THERE) &&
	    pier_receiver_wait(fixture.receiver, STALL_MS) == -ETIMEDOUT)
		pier_receiver_cancel(fixture.receiver);
	stage.receiver_error = pier_receiver_wait(fixture.receiver, PATIENT);
	keep_sentence(stage.receiver_sentence, sizeof(stage.receiver_sentence),
		      stage.receiver_error);
}

/* Drives the receiver until enough chunks have arrived, or the timeout expires. */
static void land_some(void)
{
	int64_t deadline = pier_deadline(PATIENT);
	int result = 0;

	while ((result == 0 || result == -ETIMEDOUT) && landed().done < HIT * CHUNK &&
	       pier_now() < deadline)
		result = pier_receiver_wait(fixture.receiver, 1);
}

/* Runs in a thread and must not assert. */
static void *land(void *argument)
{
	struct pier_work work;

	if (by(BREAK_THERE) && !stage.hit_there) {
		struct pier_channel *channel = fixture.there.channels[0];

		stage.hit_there = true;
		land_some();
		stage.broken = post_forged(channel, fixture.there.mrs[0], &work);
		if (!stage.broken)
			stage.broken = test_work_finish(channel, work, PATIENT, NULL);
		sem_post(&stage.gate);
	}
	wait_receiver();
	return argument;
}

static void wait_transfer(void)
{
	if (by(OVER_IN_TIME) &&
	    pier_transfer_wait(fixture.transfer, STALL_MS) == -ETIMEDOUT)
		pier_transfer_cancel(fixture.transfer);
	stage.error = pier_transfer_wait(fixture.transfer, PATIENT);
	keep_sentence(stage.sentence, sizeof(stage.sentence), stage.error);
}

/* Drives both ends, each in its own thread, until they have ended. */
static void run_both(bool later)
{
	pthread_t lander;

	if (fixture.receiver && !later)
		assert_int_equal(pthread_create(&lander, NULL, land, NULL), 0);
	wait_transfer();
	if (fixture.receiver && !later)
		assert_int_equal(pthread_join(lander, NULL), 0);
	else if (fixture.receiver)
		wait_receiver();
}

/* The sender's process dies when some of its chunks have arrived. */
static void run_receiver(void)
{
	land_some();
	assert_true(landed().done >= HIT * CHUNK);
	kill_peer();
	wait_receiver();
}

/* Ends the cause of the failure. */
static void mend(void)
{
	fixture.gpu->lost_at_to = fixture.gpu->lost_at_from = fixture.gpu->flush_error =
		0;
	if (fixture.here.mrs[0])
		pier_mr_verbs(fixture.here.mrs[0])->lkey -= stage.forged_lkey;
	stage.parts[1].rkey -= stage.forged_rkey;
	stage.forged_lkey = stage.forged_rkey = 0;
}

/* Resets the channel, or replaces it if a reset fails, as after a CQ overrun. */
static void remake(struct side *side, const char *plan, bool another,
		   struct pier_channel_attr attr)
{
	struct pier_channel **channel = &side->channels[0];
	bool overran = strstr(plan, "overrun") && !stage.remade;

	expect_result(pier_channel_reset(*channel), overran ? -EIO : 0);
	if (overran)
		test_assert_sentence("poll the completion queue");
	if (!overran && !another)
		return;
	expect_ok(pier_channel_destroy(*channel));
	expect_ok(pier_channel_create(side->pd, &attr, channel));
}

/* From now on both ends wait longer. */
static void remake_both(void)
{
	struct pier_channel_attr here = attr_here();

	here.rnr_retry_count = 7;
	remake(&fixture.here, stage.fault->here, by(GIVES_UP_RNR), here);
	remake(&fixture.there, stage.fault->there, false, attr_there());
	stage.remade = true;
	connect_ends();
	fixture.rails[0].channel = fixture.here.channels[0];
	name_receiver();
}

static void resume_receiver(void)
{
	if (is(LANDS) && landed().error)
		expect_ok(pier_receiver_resume(fixture.receiver, fixture.receiver_rails,
					       1));
}

static void resume_transfer(void)
{
	if (status().error)
		expect_ok(pier_transfer_resume(fixture.transfer, fixture.rails, 1));
}

static void resume_ends(void)
{
	resume_receiver();
	resume_transfer();
}

/* On a busy machine, an end with a short stall timeout may stall again. */
static bool stalled_again(void)
{
	return (by(STALLS_HERE) && stage.error == -EHOSTUNREACH) ||
	       (by(OVER_IN_TIME) && stage.error == -ECANCELED) ||
	       (by(STALLS_THERE) && stage.receiver_error == -EHOSTUNREACH) ||
	       (by(OVER_IN_TIME_THERE) && stage.receiver_error == -ECANCELED);
}

static void expect_both_end(void)
{
	run_both(false);
	for (int i = 0; i < TRIES && stalled_again(); i++) {
		if (status().error)
			remake_both();
		resume_ends();
		run_both(false);
	}
	assert_int_equal(stage.error, 1);
	if (is(LANDS))
		assert_int_equal(stage.receiver_error, 1);
	expect_all();
}

/*
 * The receiver has all chunks that the transfer counts, if its device reported all of
 * them.
 */
static void resume_both(void)
{
	resume_receiver();
	if (is(LANDS) && !*stage.fault->there)
		assert_true(landed().done >= status().done);
	resume_transfer();
	expect_both_end();
}

/* Resuming on a broken channel is refused. */
static void expect_refused(void)
{
	if (status().error && pier_channel_error(fixture.here.channels[0], NULL, 0))
		expect_result(pier_transfer_resume(fixture.transfer, fixture.rails, 1),
			      -EPIPE);
	if (is(LANDS) && landed().error &&
	    pier_channel_error(fixture.there.channels[0], NULL, 0))
		expect_result(
			pier_receiver_resume(fixture.receiver, fixture.receiver_rails, 1),
			-EPIPE);
}

/*
 * The transfer sends the chunks that it counts as missing, while the receiver is driven.
 */
static void send_missing(void)
{
	int64_t deadline = pier_deadline(PATIENT);

	resume_transfer();
	while (!status().ended && pier_now() < deadline) {
		int result = pier_receiver_wait(fixture.receiver, 1);

		assert_true(result >= 0 || result == -ETIMEDOUT);
		pier_transfer_wait(fixture.transfer, 1);
	}
	expect_result(pier_transfer_progress(fixture.transfer), 1);
}

static void begin_anew(void)
{
	expect_ok(pier_receiver_destroy(fixture.receiver));
	fixture.receiver = NULL;
	assert_true(pier_channel_error(fixture.there.channels[0], NULL, 0) < 0);
	assert_int_equal(pier_channel_outstanding(fixture.there.channels[0]), 0);
	remake_both();
	begin_both();
	expect_both_end();
}

/* If more is missing, the receiver waits for the rest and never reports completion. */
static void lack_some(void)
{
	uint64_t counted = status().done;
	bool lacks;
	int result;

	remake_both();
	resume_receiver();
	lacks = counted > landed().done;
	/* The reset loses no chunk that arrived behind the lost one. */
	if (strstr(stage.fault->there, "lost"))
		assert_int_equal(landed().done, LENGTH - CHUNK);
	if (status().error)
		send_missing();
	result = pier_receiver_wait(fixture.receiver, BRIEF);
	/* On a loaded machine BRIEF may last longer than the stall timeout. */
	if (!lacks || result != -EHOSTUNREACH)
		expect_result(result, lacks ? -ETIMEDOUT : 1);
	assert_int_equal(landed().done < LENGTH, lacks);
	if (lacks)
		begin_anew();
	else
		expect_all();
}

static void lose_some(void)
{
	expect_result(pier_receiver_resume(fixture.receiver, fixture.receiver_rails, 1),
		      -EIO);
	test_assert_sentence("the peer will not send them again");
	expect_result(
		pier_receiver_next(fixture.receiver, fixture.receiver_rails, 1, LENGTH),
		-EBUSY);
	begin_anew();
}

static void expect_sequel(enum sequel sequel)
{
	mend();
	if (sequel == RESUMED) {
		expect_result(pier_channel_error(fixture.here.channels[0], NULL, 0), 0);
		expect_result(pier_channel_error(fixture.there.channels[0], NULL, 0), 0);
		resume_both();
	} else if (sequel == AFTER_RESET) {
		expect_refused();
		remake_both();
		resume_both();
	} else if (sequel == LACKING) {
		lack_some();
	} else if (sequel == LOST) {
		lose_some();
	} else if (sequel == NOTHING) {
		expect_all();
	}
}

void play_transfer(const struct kind *kind, const struct transfer_fault *fault)
{
	const struct transfer_outcome *outcome = find_transfer_outcome(kind, fault);

	stage.kind = kind;
	stage.fault = fault;
	stage.hit = stage.hit_there = stage.remade = false;
	stage.broken = 0;
	open_stage();
	if (by(KILL_HERE)) {
		run_receiver();
	} else {
		run_both(by(LANDS_LATER));
		expect_here(outcome);
	}
	if (fixture.receiver) {
		expect_there(outcome);
		assert_int_equal(stage.broken, by(BREAK_THERE) ? -EACCES : 0);
	}
	expect_all_memory();
	expect_sequel(outcome->sequel);
}

/* A failed registration, and each failed step of it, must leave nothing behind. */
static int register_here(bool reaches, const char *plan)
{
	struct test_census before;
	struct pier_mr *mr = NULL;
	char device[64];
	int error;

	snprintf(device, sizeof(device), "fault:%s=ENOMEM:soft0", plan);
	open_side(&fixture.here, device);
	before = test_take_census();
	fixture.gpu->export_error = reaches ? 0 : EPERM;
	error = pier_mr_reg_buffer(fixture.here.pd, fixture.here.buffer, 0, AREA,
				   PIER_ACCESS_SHARED, PIER_POLICY_BOUNCE, &mr);
	fixture.gpu->export_error = 0;
	if (error)
		test_assert_sentence("strikes reg_");
	assert_int_equal(!error, mr != NULL);
	assert_int_equal(fixture.gpu->locks - fixture.gpu->unlocks,
			 mr && pier_mr_path(mr) == PIER_PATH_BOUNCE);
	expect_ok(pier_mr_dereg(mr));
	assert_int_equal(fixture.gpu->open_exports, 0);
	assert_int_equal(fixture.gpu->locks, fixture.gpu->unlocks);
	test_assert_census(&before);
	close_side(&fixture.here);
	return error;
}

/*
 * If one path is refused, the next one is tried. All paths from the first or the second
 * on are refused in turn.
 */
void refuse_registrations(void **state)
{
	static const int refused[] = { 2, 1 }; /* peer memory and the copy; the dma-buf */

	(void)state;
	for (int reaches = 0; reaches < 2; reaches++) {
		for (int nth = 1; nth <= 4; nth++) {
			char plan[16];

			snprintf(plan, sizeof(plan), "reg@%d", nth);
			expect_result(register_here(reaches, plan), 0);
			strcat(plan, "+");
			expect_result(register_here(reaches, plan),
				      nth > refused[reaches] ? 0 : -ENOMEM);
		}
	}
}

int transfers_begin(void **state)
{
	int error = make_folder(state);

	stage.seed = fixture.random;
	return error || sem_init(&stage.gate, 0, 0);
}

int transfers_end(void **state)
{
	sem_destroy(&stage.gate);
	return remove_folder(state);
}

int transfer_setup(void **state)
{
	(void)state;
	memset(fixture.gpu, 0, sizeof(*fixture.gpu));
	fixture.before = test_take_census();
	pier_channel_attr_init(&fixture.attr);
	fixture.attr.rnr_retry_count = 7;
	fixture.attr.min_rnr_timer = 1;
	fixture.attr.retry_count = 1;
	fixture.attr.timeout_ms = PATIENT;
	fixture.attr.max_recv_wr = MANY_RECEIVES;
	fixture.transfer = NULL;
	fixture.receiver = NULL;
	return 0;
}

int transfer_teardown(void **state)
{
	if (stage.peer)
		kill_peer();
	if (stage.stream >= 0)
		close(stage.stream);
	stage.stream = -1;
	mend();
	return teardown(state);
}
