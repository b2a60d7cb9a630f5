/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "party.h"
#include "printable.h"

enum {
	/* A few threads saturate memory or the disk. */
	THREADS_CHOSEN_MAX = 4,
};

static uint64_t notice_size(const char *sentence)
{
	return sizeof(struct notice) + strlen(sentence) + 1 + BUDGET_ALLOCATION;
}

void open_notices(struct notices *notices, struct budget *budget)
{
	pthread_mutex_init(&notices->lock, NULL);
	notices->first = NULL;
	notices->last = &notices->first;
	notices->budget = budget;
	notices->lost = false;
}

void add_notice(struct notices *notices, uint32_t number, const char *sentence)
{
	size_t length = strlen(sentence) + 1;
	struct notice *notice = NULL;

	if (charge_budget(notices->budget, notice_size(sentence))) {
		notice = malloc(sizeof(*notice) + length);
		if (!notice)
			release_budget(notices->budget, notice_size(sentence));
	}
	pthread_mutex_lock(&notices->lock);
	if (notice) {
		notice->next = NULL;
		notice->number = number;
		memcpy(notice->sentence, sentence, length);
		*notices->last = notice;
		notices->last = &notice->next;
	} else {
		notices->lost = true;
	}
	pthread_mutex_unlock(&notices->lock);
}

/* The oldest, to be freed; NULL: there is none. */
static struct notice *take_notice(struct notices *notices)
{
	struct notice *notice;

	pthread_mutex_lock(&notices->lock);
	notice = notices->first;
	if (notice) {
		notices->first = notice->next;
		if (!notices->first)
			notices->last = &notices->first;
	}
	pthread_mutex_unlock(&notices->lock);
	if (notice)
		release_budget(notices->budget, notice_size(notice->sentence));
	return notice;
}

void close_notices(struct notices *notices)
{
	struct notice *notice;

	while ((notice = take_notice(notices)))
		free(notice);
	pthread_mutex_destroy(&notices->lock);
}

int prepare_party(struct party *party)
{
	struct connection *connection = &party->connection;
	long processors = sysconf(_SC_NPROCESSORS_ONLN);
	unsigned int threads = THREADS_CHOSEN_MAX;
	size_t scratch = PIECE_SIZE;

	if (open_connection(connection, party->size) < 0)
		return -1;
	party->report = connection->stream.report;
	if (connection->stream.substitute && party->client && !party->quiet)
		print_error("pier cp: no usable RDMA device: using the software "
			    "NIC " PIER_SOFT_DEVICE);
	begin_digest(&party->digest, party->settings->secret, party->size);
	if (processors < 2 * THREADS_CHOSEN_MAX)
		threads = processors > 1 ? (unsigned int)(processors + 1) / 2 : 1;
	/* Nothing reads ahead of direct reads: some threads wait for the disk. */
	if (party->role == CP_SENDER)
		threads *= 2;
	if (party->settings->threads)
		threads = party->settings->threads;
	if (party->standard) {
		/* One thread keeps the order, and has room to verify a whole chunk. */
		threads = 1;
		if (scratch < connection->stream.chunk)
			scratch = connection->stream.chunk;
	}
	return start_workers(threads, scratch, &connection->workers, party->failure);
}

void close_party(struct party *party)
{
	close_connection(&party->connection);
	close_kept(&party->kept);
	close_same(&party->same);
	drop_mac(&party->digest);
}

/* The user's part; the terminal may show the progress in this line. */
static void show_notice(struct party *party, uint32_t number, const char *sentence)
{
	end_progress(party->progress);
	print_error("pier cp: %s", sentence);
	party->left_out += number != NOTICE_OF_DESTINATION;
}

/* Take FRAME_FILE. */
static int take_file_notice(struct connection *connection, const struct frame *frame)
{
	struct party *party = (struct party *)connection;
	struct file_notice notice;

	if (parse_message(party->control, frame, &notice) < 0)
		return -1;
	/* An honest server has found room for all of them beside its list. */
	if (party->settings->dry_run &&
	    !charge_budget(&party->budget, notice_size(notice.sentence)))
		return control_fail_invalid(party->control,
					    "number of files that are left out");
	if (party->client)
		show_notice(party, NOTICE_OF_NO_FILE, notice.sentence);
	if (connection->role == CP_RECEIVER && party->tree &&
	    notice.number < party->tree->list.count)
		atomic_store(&party->tree->list.entries[notice.number].failed, true);
	return 0;
}

static int keep_alive(void *context)
{
	struct party *party = context;

	/* A walk calls it only after much work, so each call sends a keepalive. */
	if (party->role == CP_SENDER)
		party->keepalive_ns = 0;
	return keep_peer_waiting(&party->connection);
}

void leave_file_out(struct party *party, uint32_t number, const char *path,
		    const char *reason)
{
	char sentence[CP_REASON_MAX];

	snprintf(sentence, sizeof(sentence), "%.700s: %s", path, reason);
	add_notice(&party->notices, number, sentence);
}

static void report_left_out(void *party, const char *path, const char *reason)
{
	leave_file_out(party, NOTICE_OF_NO_FILE, path, reason);
}

/* A single file has no list, and few notices. */
void begin_party(struct party *party)
{
	const struct cp_settings *settings = party->settings;
	uint64_t chunks = settings->tree ? settings->chunk * settings->depth : 0;

	party->take_file = take_file_notice;
	party->observer = (struct observer){ keep_alive, report_left_out, party };
	atomic_store(&party->budget.left, CP_MEMORY_MAX - chunks);
}

static bool next_is_complete(const struct party *party, uint64_t bytes)
{
	const struct naming *naming = &party->naming;
	const struct list_entry *next;

	if (!naming->list)
		return naming->next == 0 && bytes == party->size && !party->same.count;
	if (naming->next == naming->list->count)
		return false;
	next = &naming->list->entries[naming->next];
	return next->offset + next->size <= bytes;
}

void name_files(struct party *party, uint64_t bytes, bool wait)
{
	struct naming *naming = &party->naming;
	const struct file_list *list = naming->list;

	if (!naming->wanted)
		return;
	while (next_is_complete(party, bytes) &&
	       (wait || !reader_is_behind(STDOUT_FILENO))) {
		const struct list_entry *entry = list ? &list->entries[naming->next]
						      : NULL;

		naming->next++;
		if (entry && atomic_load(&entry->failed))
			continue;
		end_progress(party->progress);
		if (entry)
			print_entry(list, entry, false);
		else
			print_line(stdout, "%s", naming->name);
		fflush(stdout);
	}
}

void show_notices(struct party *party)
{
	/* It ends the remote shells, too (Ctrl-C): that does not leave a destination out.
	 */
	bool signalled = party->failure->status > EXIT_SIGNAL &&
			 !party->control->failure_from_peer;
	struct notice *notice;

	while (party->client && (notice = take_notice(&party->notices))) {
		if (!signalled || notice->number != NOTICE_OF_DESTINATION)
			show_notice(party, notice->number, notice->sentence);
		free(notice);
	}
}

/* A server has no user: its client shows the first of its notices. */
int fail_empty(struct party *party)
{
	struct notice *notice = party->client ? NULL : take_notice(&party->notices);

	show_notices(party);
	fail(party->failure, EXIT_FILE, "there is nothing to copy%s%s",
	     notice ? ": " : "", notice ? notice->sentence : "");
	free(notice);
	return -1;
}

int check_notices(const struct party *party)
{
	if (!party->notices.lost)
		return 0;
	return fail(party->failure, EXIT_FILE,
		    "there is no memory to report all files that cannot be copied: leave "
		    "them out with --exclude, or copy fewer directories at a time");
}

int pass_notices(struct party *party)
{
	struct notice *notice;
	int result = 0, count = 0;

	while (result == 0 && (notice = take_notice(&party->notices))) {
		struct file_notice message = { .number = notice->number };

		if (party->client)
			show_notice(party, notice->number, notice->sentence);
		snprintf(message.sentence, sizeof(message.sentence), "%s",
			 notice->sentence);
		/* A receiver must leave the file out, too, and a server has no user. */
		if (notice->number != NOTICE_OF_DESTINATION &&
		    (party->role == CP_SENDER || !party->client))
			result = send_message(party->control, FRAME_FILE, &message);
		free(notice);
		count++;
	}
	if (result == 0)
		result = check_notices(party);
	return result < 0 ? -1 : count;
}
