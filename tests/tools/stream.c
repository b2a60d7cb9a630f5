/* SPDX-License-Identifier: BSD-3-Clause */
#include <pthread.h>
#include <stdint.h>
#include <time.h>

#include "cp/stream.h"

/* After failure.h, which has a function with the name of a macro. */
#include "../support/cmocka.h"

enum {
	/* Only a thread that waits in vain needs all of it. */
	TOGETHER_S = 30,
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static unsigned int begun, expected;
static bool alone;

int __wrap_pier_channel_cancel(struct pier_channel *channel);

/* A device that withholds completions: the call returns when all others have begun. */
int __wrap_pier_channel_cancel(struct pier_channel *channel)
{
	struct timespec deadline;

	(void)channel;
	clock_gettime(CLOCK_REALTIME, &deadline);
	deadline.tv_sec += TOGETHER_S;
	pthread_mutex_lock(&lock);
	begun++;
	pthread_cond_broadcast(&changed);
	while (begun < expected && !alone)
		alone = pthread_cond_timedwait(&changed, &lock, &deadline) != 0;
	pthread_mutex_unlock(&lock);
	return 0;
}

static void stop_rails(uint32_t count, unsigned int channels)
{
	struct stream stream = { .rail_count = count };

	for (unsigned int i = 0; i < channels; i++)
		stream.rails[i].channel = (struct pier_channel *)&stream.rails[i];
	begun = 0;
	expected = channels;
	stream_stop(&stream);
	assert_int_equal(begun, channels);
	assert_false(alone);
}

static void all_channels_are_cancelled_at_the_same_time(void **state)
{
	(void)state;
	stop_rails(CP_RAILS_MAX, CP_RAILS_MAX);
	stop_rails(1, 1);
}

/* As when a NIC cannot be opened. */
static void rails_without_a_channel_are_passed_over(void **state)
{
	(void)state;
	stop_rails(CP_RAILS_MAX, 2);
	stop_rails(CP_RAILS_MAX, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(all_channels_are_cancelled_at_the_same_time),
		cmocka_unit_test(rails_without_a_channel_are_passed_over),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
