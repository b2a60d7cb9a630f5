/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The examples of the manual pages: example_NAME() is that of <pier/NAME.h>, and the
 * comment above it is the sentence before it. main() runs them all on one device, with
 * both ends of a connection in one process.
 */
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pier/inline.h>
#include <pier/pier.h>
#include <pier/verbs.h>

/* Allocate memory and copy to it, whether or not the CPU can reach it. */
static int example_buffer(const char *spec)
{
	static const char text[] = "hello";
	struct pier_buffer *buffer;
	int error = pier_buffer_alloc(spec, sizeof(text), &buffer);

	if (error) {
		fprintf(stderr, "%s: %s\n", spec, pier_error_message());
		return error;
	}
	error = pier_buffer_copy_to(buffer, 0, text, sizeof(text));
	pier_buffer_free(buffer);
	return error;
}

/* Register memory once, however often it is used. */
static int example_cache(struct pier_mr_cache *cache, void *addr, uint64_t length)
{
	struct pier_mr_range range = pier_mr_range_pointer(addr, length);
	struct pier_mr *mr;
	int error = pier_mr_cache_get(cache, &range, PIER_ACCESS_SHARED, &mr);

	if (error)
		return error;
	/* ... use the region ... */
	return pier_mr_cache_put(cache, mr);
}

/* Write to the peer's memory, and do something else meanwhile. */
static int example_channel(struct pier_channel *channel, const struct pier_gather *piece,
			   const struct pier_remote *target)
{
	struct pier_result result;
	struct pier_work work;
	int error = pier_channel_post_write(channel, piece, 1, target, &work);

	if (error)
		return error;
	/* ... something else ... */
	error = pier_work_wait(channel, work, PIER_TIMEOUT_DEFAULT, &result);
	return error ? error : result.error;
}

/* Wait until peers have written to a region `count` times, without messages. */
static int example_counter(struct pier_counter *counter, struct pier_mr *mr,
			   uint64_t count)
{
	int error = pier_counter_bind(counter, mr);

	if (error)
		return error;
	/* ... let the peers write ... */
	error = pier_counter_wait(counter, count, 30000);
	pier_counter_unbind(counter, mr);
	return error;
}

/* Collect the completions of many channels, and sleep only if there are none. */
static int example_cq(struct pier_cq *cq)
{
	struct pier_channel *ready[16];
	int count = pier_cq_poll(cq, ready, 16);

	for (int i = 0; i < count; i++)
		printf("channel %p has completions\n", (void *)ready[i]);
	/* When this returns 0, poll(2) can wait for pier_cq_fd(cq). */
	return count ? count : pier_cq_arm(cq);
}

/* List the RDMA devices. */
static int example_device(void)
{
	struct pier_device_info *list;
	uint32_t count;
	int error = pier_device_list(&list, &count, sizeof(*list));

	if (error)
		return error;
	for (uint32_t i = 0; i < count; i++)
		printf("%s (%s)\n", list[i].name, list[i].provider);
	free(list);
	return 0;
}

/* Send the second half of a region. */
static int example_element(struct pier_channel *channel, const struct pier_mr *mr)
{
	uint64_t half = pier_mr_length(mr) / 2;
	struct pier_gather piece;
	int error = pier_mr_gather(mr, pier_mr_iova(mr) + half, half, &piece);

	return error ? error : pier_channel_send(channel, &piece, 1, 30000);
}

/* Print what a peer needs to connect; pier_endpoint_from_text() reads it. */
static int example_endpoint(struct pier_channel *channel)
{
	char text[PIER_ENDPOINT_TEXT_MAX];
	struct pier_endpoint endpoint;
	int error = pier_channel_endpoint(channel, &endpoint);

	if (!error)
		error = pier_endpoint_to_text(&endpoint, text, sizeof(text));
	if (!error)
		puts(text);
	return error;
}

/* Report a failure. */
static int example_error(const char *name)
{
	struct pier_device *device;
	int error = pier_device_open(name, &device);

	if (error) {
		fprintf(stderr, "%s (%s)\n", pier_error_message(), strerror(-error));
		return error;
	}
	return pier_device_close(device);
}

/* Register memory on another thread. */
static int example_event(struct pier_event_queue *queue, struct pier_pd *pd,
			 const struct pier_mr_attr *attr, struct pier_mr **ret_mr)
{
	struct pier_registration *registration;
	struct pier_event event;
	int error = pier_mr_reg_async(queue, pd, attr, &registration);

	if (error)
		return error;
	/* ... something else, until pier_event_queue_fd(queue) is readable ... */
	error = pier_event_queue_wait(queue, 30000, &event, sizeof(event));
	if (error < 0)
		return error;
	if (event.error)
		fprintf(stderr, "%s\n", event.sentence);
	*ret_mr = event.mr;
	/* The region stays. */
	pier_registration_close(event.registration);
	return event.error;
}

/* Connect every rank with every other one, over one socket for each pair. */
static int example_group(struct pier_pd *pd, uint32_t rank, uint32_t size,
			 const int *sockets)
{
	struct pier_group *group;
	int error = pier_group_create(pd, rank, size, NULL, &group);

	if (error)
		return error;
	error = pier_group_handshake(group, sockets, 30000);
	if (!error)
		error = pier_group_barrier(group, 30000);
	pier_group_destroy(group);
	return error;
}

/* A transfer loop; including the header is all that it takes. */
static int example_inline(struct pier_channel *channel, const struct pier_gather *piece,
			  const struct pier_remote *target, uint32_t count)
{
	struct pier_result result;
	struct pier_work work;
	int done, error;

	for (uint32_t i = 0; i < count; i++) {
		error = pier_channel_post_write(channel, piece, 1, target, &work);
		if (error)
			return error;
		do
			done = pier_work_poll(channel, work, &result);
		while (done == 0);
		if (done < 0 || result.error)
			return done < 0 ? done : result.error;
	}
	return 0;
}

static void print_message(enum pier_log_level level, const char *message, void *argument)
{
	fprintf(argument, "pier, level %d: %s\n", level, message);
}

/* Send the library's log to a stream of the program, by a function print_message(). */
static int example_log(FILE *file)
{
	pier_log_set(PIER_LOG_INFO, print_message, file);
	return 0;
}

/* Register memory of any kind, and report how the NIC reaches it. */
static int example_mr(struct pier_pd *pd, void *addr, uint64_t length)
{
	struct pier_mr_range range = pier_mr_range_pointer(addr, length);
	struct pier_mr_attr attr;
	struct pier_mr *mr;
	int error;

	pier_mr_attr_init(&attr);
	attr.ranges = &range;
	attr.range_count = 1;
	attr.access = PIER_ACCESS_SHARED;
	attr.policy = PIER_POLICY_ANY;
	error = pier_mr_reg_attr(pd, &attr, &mr);
	if (error) {
		fprintf(stderr, "%s\n", pier_error_message());
		return error;
	}
	printf("path: %s\n", pier_path_name(pier_mr_path(mr)));
	return pier_mr_dereg(mr);
}

/* Find what keeps a device open. */
static int example_object(void)
{
	struct pier_object_info *list;
	uint32_t count;
	int error = pier_object_list(&list, &count, sizeof(*list));

	if (error)
		return error;
	for (uint32_t i = 0; i < count; i++)
		printf("%s, created in %s\n", pier_object_kind_name(list[i].kind),
		       list[i].where);
	free(list);
	return 0;
}

/* Write, and complete a receive of the peer with a number. */
static int example_post(struct pier_channel *channel, const struct pier_gather *piece,
			const struct pier_remote *target, uint32_t number)
{
	struct pier_request request = {
		.opcode = PIER_OP_WRITE,
		.flags = PIER_POST_IMMEDIATE,
		.gather = piece,
		.num_sge = 1,
		.remote = target,
		.immediate = number,
	};
	struct pier_result result;
	int error = pier_channel_run_request(channel, &request, 30000, &result);

	return error ? error : result.error;
}

/* Take messages from a pool that posts its receives again. */
static int example_recv_pool(struct pier_recv_pool *pool)
{
	struct pier_pool_message message;
	int error = pier_recv_pool_wait(pool, 30000, &message);

	if (error < 0)
		return error;
	printf("a message of %u bytes\n", message.length);
	return pier_recv_pool_release(pool, &message);
}

/* Report why a channel broke, and prepare it for a new connection. */
static int example_recovery(struct pier_channel *channel)
{
	struct pier_channel_failure failure;

	if (!pier_channel_error(channel, &failure, sizeof(failure)))
		return 0;
	fprintf(stderr, "%s\n", failure.sentence);
	/* Then exchange the new endpoints, as for the first connection. */
	return pier_channel_reset(channel);
}

/* Give a peer access to the first page of a region. */
static int example_remote(const struct pier_mr *mr,
			  uint8_t ret_wire[PIER_REMOTE_WIRE_SIZE])
{
	struct pier_remote remote, page;
	int error = pier_mr_remote(mr, &remote);

	if (!error)
		error = pier_remote_sub(&remote, 0, 4096, &page);
	if (!error)
		pier_remote_pack(&page, ret_wire);
	return error;
}

/* Describe a region that may have several parts. */
static int example_remote_vec(const struct pier_mr *mr, void *ret_wire, size_t size)
{
	struct pier_remote parts[PIER_MR_PARTS_MAX];
	uint32_t count;
	int error = pier_mr_remote_vec(mr, parts, PIER_MR_PARTS_MAX, &count);

	return error ? error : pier_remote_vec_pack(parts, count, ret_wire, size);
}

/* Read from a peer into the next slot of a ring. */
static int example_ring(struct pier_ring *ring, const struct pier_ring_source *source,
			uint32_t length)
{
	struct pier_ring_read read = { .length = length };
	struct pier_ring_slot slot;
	uint32_t number;
	int count, error;

	error = pier_ring_fill(ring, source, 1, &read, 1, &number);
	if (error)
		return error;
	count = pier_ring_next(ring, 30000, &slot);
	if (count != 1)
		return count;
	/* ... use slot.pointer ... */
	return pier_ring_release(ring, &slot);
}

/* After the end nothing is in flight, also if the body fails. */
static int example_scope(struct pier_channel *channel, const struct pier_gather *piece,
			 const struct pier_remote *target)
{
	struct pier_scope_report report;
	struct pier_scope scope;
	int error = pier_scope_begin(channel, NULL, &scope);

	if (error)
		return error;
	for (int i = 0; i < 10 && !error; i++)
		error = pier_channel_post_write(channel, piece, 1, target, NULL);
	return pier_scope_end(&scope, error, &report);
}

/* Create a channel that shares its receives with others. */
static int example_srq(struct pier_pd *pd, struct pier_srq *srq,
		       const struct pier_scatter *piece,
		       struct pier_channel **ret_channel)
{
	struct pier_channel_attr attr;
	int error = pier_srq_post_recv(srq, piece, 1, NULL);

	if (error)
		return error;
	pier_channel_attr_init(&attr);
	attr.srq = srq;
	return pier_channel_create(pd, &attr, ret_channel);
}

/* Explain a completion. */
static int example_status(const struct pier_result *result)
{
	if (result->error)
		fprintf(stderr, "%s: %s\n", pier_status_name(result->status),
			pier_status_explain(result->status, result->opcode));
	return result->error;
}

/* Send any number of bytes through a buffer of a fixed size. */
static int example_stream(struct pier_transfer *transfer, uint64_t length)
{
	uint64_t filled = 0;
	int result = 0;

	while (filled < length && result >= 0) {
		uint64_t limit = pier_transfer_limit(transfer);

		if (limit > length)
			limit = length;
		/* ... fill the buffer with the bytes [filled, limit) ... */
		filled = limit;
		result = pier_transfer_extend(transfer, filled);
		if (!result)
			result = pier_transfer_wait(transfer, 30000);
	}
	pier_transfer_finish(transfer);
	while (result == 0) {
		pier_transfer_limit(transfer);
		result = pier_transfer_wait(transfer, 30000);
	}
	return result;
}

/* Let device code see what the NIC wrote, also through a bounce buffer. */
static int example_sync(struct pier_mr *mr)
{
	/* ... the completion of the write has been received ... */
	return pier_mr_sync_for_device(mr, 0, pier_mr_length(mr));
}

/* Open the NIC that is nearest to a buffer. */
static int example_topology(const struct pier_buffer *buffer)
{
	struct pier_location location;
	struct pier_device *device;
	int error = pier_device_open_near(buffer, &device);

	if (error)
		return error;
	error = pier_device_location(device, &location);
	if (!error)
		printf("%s at %s, node %d\n", pier_device_name(device), location.pci,
		       location.numa_node);
	/* Poll near the NIC. Without a known node, any CPU is as good. */
	if (!error)
		error = pier_thread_bind_near(&location);
	if (error == -ENODATA)
		error = 0;
	pier_device_close(device);
	return error;
}

/* Move many bytes to a peer that has a receiver, and wait until they are there. */
static int example_transfer(struct pier_channel *channel, struct pier_mr *mr,
			    const struct pier_remote *target)
{
	struct pier_rail rail = {
		.channel = channel, .mr = mr, .parts = target, .count = 1
	};
	struct pier_transfer_attr attr;

	pier_transfer_attr_init(&attr);
	attr.direction = PIER_TRANSFER_WRITE;
	attr.flags = PIER_TRANSFER_ANNOUNCE;
	attr.rails = &rail;
	attr.rail_count = 1;
	attr.length = target->length;
	return pier_transfer_run(&attr, 30000);
}

/* Receive what a transfer with PIER_TRANSFER_ANNOUNCE writes. */
static int example_receiver(struct pier_channel *channel, struct pier_mr *mr)
{
	struct pier_receiver_rail rail = { .channel = channel, .mr = mr };
	struct pier_receiver *receiver;
	struct pier_receiver_attr attr;
	int error;

	pier_receiver_attr_init(&attr);
	attr.rails = &rail;
	attr.rail_count = 1;
	attr.length = pier_mr_length(mr);
	error = pier_receiver_create(&attr, &receiver);
	if (error)
		return error;
	error = pier_receiver_wait(receiver, 30000);
	pier_receiver_destroy(receiver);
	return error;
}

/* Choose the pairs of NICs that two hosts connect, from what both have described. */
static int example_rails(const void *theirs, size_t size)
{
	unsigned char mine[PIER_RAILS_SIZE_MAX];
	struct pier_rail_pair pairs[4];
	int count, mine_size = pier_rails_describe(NULL, NULL, mine, sizeof(mine));

	if (mine_size < 0)
		return mine_size;
	count = pier_rails_choose(mine, (size_t)mine_size, theirs, size, pairs, 4,
				  sizeof(pairs[0]));
	for (int i = 0; i < count; i++)
		printf("%s port %u to %s port %u\n", pairs[i].device, pairs[i].port,
		       pairs[i].peer_device, pairs[i].peer_port);
	return count;
}

/* Print the number of a channel's queue pair, as other programs of verbs show it. */
static int example_verbs(const struct pier_channel *channel)
{
	printf("queue pair %u\n", pier_channel_verbs_qp(channel)->qp_num);
	return 0;
}

/* Print the version of the library that the program runs with. */
static int example_version(void)
{
	printf("pier %s\n", pier_version());
	return 0;
}

/* Sleep at once where the CPU has something else to do. */
static int example_waiting(struct pier_channel *channel)
{
	return pier_channel_set_waiting(channel, PIER_WAIT_EVENT, 0);
}

static char memory[2][65536];
static struct pier_mr *from, *to;
static struct pier_channel *here, *there;
static struct pier_remote target;

static void check(int error, const char *what)
{
	if (error >= 0)
		return;
	fprintf(stderr, "%s: %s\n", what, pier_error_message());
	exit(1);
}

#define CHECK(call) check(call, #call)

static void connect_ends(struct pier_pd *pd)
{
	struct pier_endpoint end_here, end_there;

	CHECK(pier_channel_create(pd, NULL, &here));
	CHECK(pier_channel_create(pd, NULL, &there));
	CHECK(pier_channel_endpoint(here, &end_here));
	CHECK(pier_channel_endpoint(there, &end_there));
	CHECK(pier_channel_connect(here, &end_there));
	CHECK(pier_channel_connect(there, &end_here));
}

static void destroy_ends(void)
{
	CHECK(pier_channel_destroy(here));
	CHECK(pier_channel_destroy(there));
}

static void *write_all(void *unused)
{
	CHECK(example_transfer(here, from, &target));
	return unused;
}

static void *send_stream(void *unused)
{
	struct pier_rail rail = {
		.channel = here, .mr = from, .parts = &target, .count = 1
	};
	struct pier_transfer *transfer;
	struct pier_transfer_attr attr;

	pier_transfer_attr_init(&attr);
	attr.direction = PIER_TRANSFER_WRITE;
	attr.flags = PIER_TRANSFER_ANNOUNCE;
	attr.rails = &rail;
	attr.rail_count = 1;
	attr.stream_size = sizeof(memory[0]);
	CHECK(pier_transfer_create(&attr, &transfer));
	CHECK(example_stream(transfer, 10 * sizeof(memory[0])));
	CHECK(pier_transfer_destroy(transfer));
	return unused;
}

static void receive_stream(void)
{
	struct pier_receiver_rail rail = { .channel = there, .mr = to };
	struct pier_receiver *receiver;
	struct pier_receiver_attr attr;
	uint64_t end;
	int result;

	pier_receiver_attr_init(&attr);
	attr.rails = &rail;
	attr.rail_count = 1;
	attr.stream_size = sizeof(memory[1]);
	CHECK(pier_receiver_create(&attr, &receiver));
	do {
		result = pier_receiver_wait(receiver, 30000);
		CHECK(result);
		CHECK(pier_receiver_arrived(receiver, &end));
		CHECK(pier_receiver_release(receiver, end));
	} while (result == 0);
	if (end != 10 * sizeof(memory[0]))
		abort();
	CHECK(pier_receiver_destroy(receiver));
}

static void use_memory(struct pier_pd *pd)
{
	struct pier_mr_range range = pier_mr_range_host(memory, sizeof(memory));
	unsigned char wire[PIER_REMOTE_VEC_WIRE_MAX];
	struct pier_mr_cache_attr cache_attr;
	struct pier_event_queue_attr queue_attr;
	struct pier_event_queue *queue;
	struct pier_mr_cache *cache;
	struct pier_mr_attr attr;
	struct pier_buffer *buffer;
	struct pier_mr *mr = NULL;

	CHECK(example_buffer("memfd"));
	CHECK(example_mr(pd, memory, sizeof(memory)));
	CHECK(example_remote(to, wire));
	CHECK(example_remote_vec(to, wire, sizeof(wire)));
	CHECK(example_sync(to));
	pier_mr_cache_attr_init(&cache_attr);
	CHECK(pier_mr_cache_create(pd, &cache_attr, &cache));
	CHECK(example_cache(cache, memory, sizeof(memory)));
	CHECK(pier_mr_cache_destroy(cache));
	pier_event_queue_attr_init(&queue_attr);
	CHECK(pier_event_queue_create(&queue_attr, &queue));
	pier_mr_attr_init(&attr);
	attr.ranges = &range;
	attr.range_count = 1;
	CHECK(example_event(queue, pd, &attr, &mr));
	CHECK(pier_mr_dereg(mr));
	CHECK(pier_event_queue_destroy(queue));
	CHECK(pier_buffer_alloc("memfd", 4096, &buffer));
	CHECK(example_topology(buffer));
	CHECK(pier_buffer_free(buffer));
}

static void use_receives(struct pier_pd *pd, const struct pier_gather *piece)
{
	struct pier_recv_pool_attr pool_attr;
	struct pier_srq_attr srq_attr;
	struct pier_scatter scatter;
	struct pier_recv_pool *pool;
	struct pier_channel *channel;
	struct pier_result result;
	struct pier_work work;
	struct pier_srq *srq;

	CHECK(pier_mr_scatter(to, pier_mr_iova(to), sizeof(memory[1]), &scatter));
	CHECK(pier_channel_post_recv(there, &scatter, 1, &work));
	CHECK(example_element(here, from));
	CHECK(pier_work_wait(there, work, 30000, &result));
	CHECK(example_status(&result));
	CHECK(pier_channel_post_recv(there, NULL, 0, &work));
	CHECK(example_post(here, piece, &target, 7));
	CHECK(pier_work_wait(there, work, 30000, &result));
	pier_srq_attr_init(&srq_attr);
	CHECK(pier_srq_create(pd, &srq_attr, &srq));
	CHECK(example_srq(pd, srq, &scatter, &channel));
	CHECK(pier_channel_destroy(channel));
	CHECK(pier_srq_destroy(srq));
	pier_recv_pool_attr_init(&pool_attr);
	pool_attr.channel = there;
	CHECK(pier_recv_pool_create(pd, &pool_attr, &pool));
	CHECK(pier_channel_send(here, piece, 1, 30000));
	CHECK(example_recv_pool(pool));
	CHECK(pier_channel_cancel(there));
	CHECK(pier_recv_pool_destroy(pool));
}

static void use_channels(struct pier_pd *pd, const struct pier_gather *piece)
{
	struct pier_ring_source source = { here, &target, 1 };
	struct pier_ring_attr ring_attr;
	struct pier_counter *counter;
	struct pier_cq_attr cq_attr;
	struct pier_ring *ring;
	struct pier_cq *cq;

	CHECK(example_channel(here, piece, &target));
	CHECK(example_inline(here, piece, &target, 10));
	CHECK(example_scope(here, piece, &target));
	CHECK(example_waiting(here));
	CHECK(example_endpoint(here));
	CHECK(example_verbs(here));
	CHECK(pier_counter_create(pd, &counter));
	CHECK(example_counter(counter, to, 0));
	CHECK(pier_counter_destroy(counter));
	pier_cq_attr_init(&cq_attr);
	CHECK(pier_cq_create(pd, &cq_attr, &cq));
	CHECK(example_cq(cq));
	CHECK(pier_cq_destroy(cq));
	pier_ring_attr_init(&ring_attr);
	CHECK(pier_ring_create(pd, &ring_attr, &ring));
	CHECK(example_ring(ring, &source, 4096));
	CHECK(pier_ring_destroy(ring));
}

static void use_transfer(void)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, write_all, NULL))
		abort();
	CHECK(example_receiver(there, to));
	pthread_join(thread, NULL);
	if (memcmp(memory[0], memory[1], sizeof(memory[0])) != 0)
		abort();
}

static void use_stream(void)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, send_stream, NULL))
		abort();
	receive_stream();
	pthread_join(thread, NULL);
}

int main(void)
{
	unsigned char rails[PIER_RAILS_SIZE_MAX];
	struct pier_device *device;
	struct pier_gather piece;
	struct pier_pd *pd;
	int size, none = -1;

	memset(memory[0], 'p', sizeof(memory[0]));
	CHECK(example_version());
	CHECK(example_log(stderr));
	CHECK(example_device());
	if (example_error("no such device") >= 0)
		abort();
	CHECK(pier_device_open(NULL, &device));
	CHECK(pier_pd_alloc(device, &pd));
	CHECK(pier_mr_reg(pd, memory[0], sizeof(memory[0]), PIER_ACCESS_SHARED, &from));
	CHECK(pier_mr_reg(pd, memory[1], sizeof(memory[1]), PIER_ACCESS_SHARED, &to));
	CHECK(pier_mr_gather(from, pier_mr_iova(from), 4096, &piece));
	CHECK(pier_mr_remote(to, &target));
	size = pier_rails_describe(NULL, NULL, rails, sizeof(rails));
	CHECK(size);
	CHECK(example_rails(rails, (size_t)size));
	CHECK(example_group(pd, 0, 1, &none));
	use_memory(pd);
	connect_ends(pd);
	use_channels(pd, &piece);
	use_transfer();
	destroy_ends();
	/* A receiver that is destroyed leaves its channel broken. */
	connect_ends(pd);
	use_stream();
	destroy_ends();
	connect_ends(pd);
	use_receives(pd, &piece);
	CHECK(example_recovery(there));
	CHECK(example_object());
	destroy_ends();
	CHECK(pier_mr_dereg(from));
	CHECK(pier_mr_dereg(to));
	CHECK(pier_pd_dealloc(pd));
	CHECK(pier_device_close(device));
	return 0;
}
