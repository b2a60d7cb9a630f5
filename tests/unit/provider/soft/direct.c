/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "provider/soft/engine.h"
#include "provider/soft/limits.h"
#include "provider/soft/link/link.h"
#include "provider/soft/link/grant.h"
#include "provider/soft/link/fifo.h"
#include "provider/soft/queues/qp.h"
#include "provider/soft/soft.h"
#include "soft_fixture.h"

/*
 * Direct copies into and out of a peer's region by its fds, and the cases without them.
 * Without fds everything goes through the FIFO here; see addresses.c.
 */

static const struct pier_provider *const soft = &pier_soft_provider;
static const struct fixture_options stepped = { .stepped = 1 };

enum {
	WRITABLE = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
		   IBV_ACCESS_REMOTE_READ,
	SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL,
	AREA = 3 << 20,
	IOVA = FIXTURE_PAGE
};

/* A memfd, and a region that covers it. */
struct area {
	int fd;
	uint8_t *memory;
	struct ibv_mr *mr;
	struct fixture_endpoint remote;
};

static void register_area(struct area *area, struct soft_fixture *fixture, int access)
{
	area->mr = soft->reg_dmabuf_mr(fixture->pd, 0, AREA, IOVA, area->fd, access);
	assert_non_null(area->mr);
	area->remote.rkey = area->mr->rkey;
	area->remote.address = IOVA;
}

static void open_area(struct area *area, struct soft_fixture *fixture, int access,
		      int seals)
{
	memset(area, 0, sizeof(*area));
	area->fd = memfd_create("area", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	assert_true(area->fd >= 0);
	assert_int_equal(ftruncate(area->fd, AREA), 0);
	assert_int_equal(fcntl(area->fd, F_ADD_SEALS, seals), 0);
	area->memory = mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_SHARED, area->fd, 0);
	assert_ptr_not_equal(area->memory, MAP_FAILED);
	register_area(area, fixture, access);
}

static void close_area(struct area *area)
{
	if (area->mr)
		assert_int_equal(soft->dereg_mr(area->mr), 0);
	munmap(area->memory, AREA);
	close(area->fd);
}

static struct soft_qp *qp_of(const struct soft_fixture *fixture)
{
	return (struct soft_qp *)fixture->qp;
}

static struct soft_fifo *fifo_of(const struct soft_fixture *fixture)
{
	assert_non_null(qp_of(fixture)->link.fifo);
	return qp_of(fixture)->link.fifo;
}

static const struct soft_received_grant *grant_for(const struct soft_fixture *fixture,
						   uint32_t key)
{
	const struct soft_fifo *fifo = qp_of(fixture)->link.fifo;

	for (int i = 0; fifo && i < SOFT_MAX_GRANTS; i++) {
		if (fifo->received[i].key == key)
			return &fifo->received[i];
	}
	return NULL;
}

static bool has_leave(const struct soft_fixture *fixture, uint32_t key)
{
	const struct soft_received_grant *taken = grant_for(fixture, key);

	return taken && taken->state == SOFT_GRANT_RECEIVED;
}

/* As if the engine had not run yet. */
static void miss_events(struct soft_fixture *fixture)
{
	struct epoll_event events[8];

	while (epoll_wait(soft_context(fixture->context)->engine.epoll_fd, events, 8, 0) >
	       0)
		;
}

static void step_often(struct soft_fixture *a, struct soft_fixture *b)
{
	for (int i = 0; i < 40; i++)
		fixture_step(a, b);
}

static void transfer(struct soft_fixture *a, struct soft_fixture *b,
		     enum ibv_wr_opcode opcode, const struct fixture_endpoint *remote,
		     uint64_t at, uint32_t length, enum ibv_wc_status status)
{
	assert_int_equal(
		fixture_post(a, opcode, 1, 0, length, remote, at, IBV_SEND_SIGNALED), 0);
	fixture_expect(a, a->send_cq, b, 1, status);
}

/* Two requests through the FIFO; at the second the NIC asks for a grant. */
static void use_twice(struct soft_fixture *a, struct soft_fixture *b,
		      const struct fixture_endpoint *remote, enum ibv_wr_opcode opcode)
{
	transfer(a, b, opcode, remote, 0, 1, IBV_WC_SUCCESS);
	transfer(a, b, opcode, remote, 0, 1, IBV_WC_SUCCESS);
	step_often(a, b);
}

struct pair {
	struct soft_fixture a, b;
	struct area area; /* of b */
};

static void open_pair(struct pair *pair, const struct fixture_options *options,
		      int access)
{
	fixture_open_pair(&pair->a, &pair->b, options);
	open_area(&pair->area, &pair->b, access, SEALS);
}

static void open_with_leave(struct pair *pair, const struct fixture_options *options)
{
	open_pair(pair, options, WRITABLE);
	use_twice(&pair->a, &pair->b, &pair->area.remote, IBV_WR_RDMA_WRITE);
	assert_true(has_leave(&pair->a, pair->area.mr->rkey));
}

static void close_pair(struct pair *pair)
{
	close_area(&pair->area);
	fixture_close(&pair->a);
	fixture_close(&pair->b);
}

static void fill(uint8_t *memory, size_t length, uint32_t seed)
{
	for (size_t i = 0; i < length; i++)
		memory[i] = (uint8_t)(i * 7 + (i >> 8) * 13 + seed);
}

static int count_areas(void)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	char line[512];
	int count = 0;

	assert_non_null(maps);
	while (fgets(line, sizeof(line), maps))
		count += strstr(line, "/memfd:area") != NULL;
	fclose(maps);
	return count;
}

/* Expect the bytes and guards, and no traffic in the fifos. */
static void check_both_ways(struct pair *pair)
{
	struct soft_fixture *a = &pair->a;
	uint8_t *remote = pair->area.memory;
	uint64_t put = fifo_of(a)->put, taken = fifo_of(a)->taken;

	fill(a->memory, 30000, 1);
	memset(remote, 0, 40000);
	transfer(a, &pair->b, IBV_WR_RDMA_WRITE, &pair->area.remote, 100, 30000,
		 IBV_WC_SUCCESS);
	assert_int_equal(remote[99], 0);
	assert_memory_equal(remote + 100, a->memory, 30000);
	assert_int_equal(remote[30100], 0);
	fill(remote, 40000, 2);
	memset(a->memory, 0, FIXTURE_MEMORY);
	transfer(a, &pair->b, IBV_WR_RDMA_READ, &pair->area.remote, 77, 30000,
		 IBV_WC_SUCCESS);
	assert_memory_equal(a->memory, remote + 77, 30000);
	assert_int_equal(a->memory[30000], 0);
	assert_int_equal(fifo_of(a)->put, put);
	assert_int_equal(fifo_of(a)->taken, taken);
}

/* From local memory that may vanish, which the kernel copies. */
static void copies_from_host_memory(void **state)
{
	struct pair pair;

	(void)state;
	open_with_leave(&pair, &stepped);
	check_both_ways(&pair);
	close_pair(&pair);
}

/* From memory that cannot vanish. */
static void copies_from_steady_memory(void **state)
{
	struct area ours;
	struct pair pair;
	uint8_t *host;
	struct ibv_mr *mr;

	(void)state;
	open_with_leave(&pair, &stepped);
	open_area(&ours, &pair.a, WRITABLE, SEALS);
	assert_int_equal(soft->dereg_mr(ours.mr), 0);
	ours.mr = soft->reg_dmabuf_mr(pair.a.pd, 0, AREA, (uintptr_t)ours.memory, ours.fd,
				      WRITABLE);
	assert_non_null(ours.mr);
	mr = pair.a.mr;
	host = pair.a.memory;
	pair.a.mr = ours.mr;
	pair.a.memory = ours.memory;
	check_both_ways(&pair);
	pair.a.mr = mr;
	pair.a.memory = host;
	close_area(&ours);
	close_pair(&pair);
}

static void copies_inline_data(void **state)
{
	struct pair pair;
	uint64_t put;

	(void)state;
	open_with_leave(&pair, &stepped);
	put = fifo_of(&pair.a)->put;
	fill(pair.a.memory, 64, 5);
	assert_int_equal(fixture_post(&pair.a, IBV_WR_RDMA_WRITE, 1, 0, 64,
				      &pair.area.remote, 10,
				      IBV_SEND_SIGNALED | IBV_SEND_INLINE),
			 0);
	fixture_expect(&pair.a, pair.a.send_cq, &pair.b, 1, IBV_WC_SUCCESS);
	assert_memory_equal(pair.area.memory + 10, pair.a.memory, 64);
	assert_int_equal(pair.area.memory[74], 0);
	assert_int_equal(fifo_of(&pair.a)->put, put);
	close_pair(&pair);
}

/* Two whole files in unaligned pieces: every message crosses every kind of edge. */
static void copies_pieces_of_any_alignment(void **state)
{
	struct pier_provider_part parts[5];
	struct fixture_endpoint remote = { .address = 0x50000 };
	struct area first, second;
	struct ibv_mr *mr;
	struct pair pair;
	uint64_t put;

	(void)state;
	open_with_leave(&pair, &stepped);
	open_area(&first, &pair.b, WRITABLE, SEALS);
	open_area(&second, &pair.b, WRITABLE, SEALS);
	parts[0] = (struct pier_provider_part){ first.fd, 4090, NULL, 10 };
	parts[1] = (struct pier_provider_part){ second.fd, 5, NULL, 7 };
	parts[2] = (struct pier_provider_part){ first.fd, 4100, NULL, AREA - 4100 };
	parts[3] = (struct pier_provider_part){ second.fd, 0, NULL, AREA };
	parts[4] = (struct pier_provider_part){ first.fd, 0, NULL, 4090 };
	mr = soft->reg_parts(pair.b.pd, parts, 5, 0x50000, WRITABLE, NULL);
	assert_non_null(mr);
	remote.rkey = mr->rkey;
	use_twice(&pair.a, &pair.b, &remote, IBV_WR_RDMA_WRITE);
	assert_true(has_leave(&pair.a, mr->rkey));
	for (uint32_t start = 0; start < 20; start++) {
		put = fifo_of(&pair.a)->put;
		memset(first.memory, 0, 20000);
		memset(second.memory, 0, 100);
		fill(pair.a.memory, 5000, start);
		transfer(&pair.a, &pair.b, IBV_WR_RDMA_WRITE, &remote, start, 4000,
			 IBV_WC_SUCCESS);
		for (uint32_t i = 0; i < 5017; i++) {
			bool inside = i >= start && i < start + 4000;
			uint8_t byte = i < 10	? first.memory[4090 + i]
				       : i < 17 ? second.memory[5 + i - 10]
						: first.memory[4100 + i - 17];

			assert_int_equal(byte, inside ? pair.a.memory[i - start] : 0);
		}
		assert_int_equal(first.memory[4089], 0);
		assert_int_equal(second.memory[4], 0);
		assert_int_equal(second.memory[12], 0);
		assert_int_equal(fifo_of(&pair.a)->put, put);
	}
	assert_int_equal(soft->dereg_mr(mr), 0);
	close_area(&first);
	close_area(&second);
	close_pair(&pair);
}

/* Memory that could shrink, that has no file, or that no peer may access. */
static void grants_only_suitable_memory(void **state)
{
	struct fixture_endpoint host;
	struct area loose;
	struct pair pair;

	(void)state;
	open_with_leave(&pair, &stepped);
	open_area(&loose, &pair.b, WRITABLE, F_SEAL_GROW);
	use_twice(&pair.a, &pair.b, &loose.remote, IBV_WR_RDMA_WRITE);
	assert_int_equal(grant_for(&pair.a, loose.mr->rkey)->state, SOFT_GRANT_DENIED);
	fixture_describe(&pair.b, &host);
	use_twice(&pair.a, &pair.b, &host, IBV_WR_RDMA_READ);
	assert_int_equal(grant_for(&pair.a, host.rkey)->state, SOFT_GRANT_DENIED);
	close_area(&loose);
	close_pair(&pair);
}

static void check_no_leave(struct pair *pair, struct ibv_mr *mr, uint64_t address,
			   enum ibv_wr_opcode opcode)
{
	struct fixture_endpoint remote = { .rkey = mr->rkey, .address = address };

	use_twice(&pair->a, &pair->b, &remote, opcode);
	assert_int_equal(grant_for(&pair->a, mr->rkey)->state, SOFT_GRANT_DENIED);
	assert_int_equal(soft->dereg_mr(mr), 0);
}

/* An fd gives both rights, so the key must give both. */
static void does_not_grant_a_single_right(void **state)
{
	struct pair pair;

	(void)state;
	open_with_leave(&pair, &stepped);
	check_no_leave(&pair,
		       soft->reg_dmabuf_mr(pair.b.pd, 0, AREA, 0, pair.area.fd,
					   IBV_ACCESS_REMOTE_READ),
		       0, IBV_WR_RDMA_READ);
	check_no_leave(
		&pair,
		soft->reg_dmabuf_mr(pair.b.pd, 0, AREA, 0, pair.area.fd,
				    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE),
		0, IBV_WR_RDMA_WRITE);
	close_pair(&pair);
}

/* Past the caches, from and to any alignment. */
static void reads_long_messages(void **state)
{
	const uint32_t length = 200003;
	struct area ours;
	struct pair pair;

	(void)state;
	open_with_leave(&pair, &stepped);
	open_area(&ours, &pair.a, WRITABLE, SEALS);
	fill(pair.area.memory, AREA, 9);
	for (uint32_t shift = 0; shift < 70; shift += 3) {
		struct ibv_sge element = { IOVA + shift, length, ours.mr->lkey };
		struct ibv_send_wr *bad, wr = {
			.opcode = IBV_WR_RDMA_READ,
			.sg_list = &element,
			.num_sge = 1,
			.wr_id = 1,
			.send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = { IOVA + 7 * shift, pair.area.mr->rkey },
		};

		memset(ours.memory, 0xee, length + 200);
		assert_int_equal(ibv_post_send(pair.a.qp, &wr, &bad), 0);
		fixture_expect(&pair.a, pair.a.send_cq, &pair.b, 1, IBV_WC_SUCCESS);
		for (uint32_t i = 0; i < shift; i++)
			assert_int_equal(ours.memory[i], 0xee);
		assert_memory_equal(ours.memory + shift, pair.area.memory + 7 * shift,
				    length);
		assert_int_equal(ours.memory[shift + length], 0xee);
	}
	close_area(&ours);
	close_pair(&pair);
}

static void seal_against_writers(struct area *area, struct soft_fixture *fixture)
{
	open_area(area, fixture, WRITABLE, F_SEAL_SHRINK | F_SEAL_GROW);
	assert_int_equal(soft->dereg_mr(area->mr), 0);
	assert_int_equal(fcntl(area->fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_FUTURE_WRITE),
			 0);
	assert_null(soft->reg_dmabuf_mr(fixture->pd, 0, AREA, IOVA, area->fd, WRITABLE));
	assert_int_equal(errno, EPERM);
	register_area(area, fixture, IBV_ACCESS_REMOTE_READ);
}

/* Its fd gives the right to read alone, and so does the key. */
static void grants_sealed_memory_for_reading(void **state)
{
	struct area sealed;
	struct pair pair;
	uint64_t put, taken;

	(void)state;
	open_with_leave(&pair, &stepped);
	seal_against_writers(&sealed, &pair.b);
	use_twice(&pair.a, &pair.b, &sealed.remote, IBV_WR_RDMA_READ);
	assert_true(has_leave(&pair.a, sealed.mr->rkey));
	assert_false(grant_for(&pair.a, sealed.mr->rkey)->by_address);
	put = fifo_of(&pair.a)->put;
	taken = fifo_of(&pair.a)->taken;
	fill(sealed.memory, 40000, 3);
	memset(pair.a.memory, 0, FIXTURE_MEMORY);
	transfer(&pair.a, &pair.b, IBV_WR_RDMA_READ, &sealed.remote, 77, 30000,
		 IBV_WC_SUCCESS);
	assert_memory_equal(pair.a.memory, sealed.memory + 77, 30000);
	assert_int_equal(pair.a.memory[30000], 0);
	assert_int_equal(fifo_of(&pair.a)->put, put);
	assert_int_equal(fifo_of(&pair.a)->taken, taken);
	transfer(&pair.a, &pair.b, IBV_WR_RDMA_WRITE, &sealed.remote, 77, 30000,
		 IBV_WC_REM_ACCESS_ERR);
	assert_int_equal(sealed.memory[77], pair.a.memory[0]);
	close_area(&sealed);
	close_pair(&pair);
}

/* An fd gives the whole file, so the region must cover all of it. */
static void does_not_grant_part_of_a_file(void **state)
{
	const struct pier_provider_part lists[][2] = {
		{ { .length = AREA - 1 } },
		{ { .offset = FIXTURE_PAGE, .length = AREA - FIXTURE_PAGE } },
		{ { .length = FIXTURE_PAGE },
		  { .offset = FIXTURE_PAGE + 1, .length = AREA - FIXTURE_PAGE - 1 } },
		{ { .length = FIXTURE_PAGE },
		  { .offset = FIXTURE_PAGE - 1, .length = AREA - FIXTURE_PAGE } },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
		struct pier_provider_part parts[2] = { lists[i][0], lists[i][1] };
		uint32_t count = parts[1].length > 0 ? 2 : 1;
		struct pair pair;

		open_with_leave(&pair, &stepped);
		parts[0].fd = parts[1].fd = pair.area.fd;
		check_no_leave(
			&pair,
			soft->reg_parts(pair.b.pd, parts, count, 0x50000, WRITABLE, NULL),
			0x50000, IBV_WR_RDMA_WRITE);
		close_pair(&pair);
	}
}

/* Padding that holds no data need not be in the region. */
static void grants_a_file_with_padding(void **state)
{
	struct pair pair;

	(void)state;
	for (uint32_t missing = 0; missing < 2; missing++) {
		struct fixture_endpoint remote = { 0 };
		struct ibv_mr *mr;

		open_with_leave(&pair, &stepped);
		mr = soft->reg_dmabuf_mr(pair.b.pd, 0, AREA - 100, 0, pair.area.fd,
					 WRITABLE);
		assert_non_null(mr);
		remote.rkey = mr->rkey;
		soft->set_padding(mr, 100 - missing);
		use_twice(&pair.a, &pair.b, &remote, IBV_WR_RDMA_WRITE);
		assert_int_equal(has_leave(&pair.a, mr->rkey), missing == 0);
		/* The padding is still not part of the region. */
		transfer(&pair.a, &pair.b, IBV_WR_RDMA_WRITE, &remote, AREA - 100, 1,
			 IBV_WC_REM_ACCESS_ERR);
		assert_int_equal(pair.area.memory[AREA - 100], 0);
		assert_int_equal(soft->dereg_mr(mr), 0);
		close_pair(&pair);
	}
}

/* Without the last seal the file could still grow beyond the region. */
static void does_not_grant_a_growing_file(void **state)
{
	const int seals[] = { F_SEAL_SHRINK, F_SEAL_SHRINK | F_SEAL_GROW,
			      F_SEAL_SHRINK | F_SEAL_SEAL, F_SEAL_GROW | F_SEAL_SEAL };

	(void)state;
	for (size_t i = 0; i < sizeof(seals) / sizeof(seals[0]); i++) {
		struct area loose;
		struct pair pair;

		open_with_leave(&pair, &stepped);
		open_area(&loose, &pair.b, WRITABLE, seals[i]);
		use_twice(&pair.a, &pair.b, &loose.remote, IBV_WR_RDMA_WRITE);
		assert_int_equal(grant_for(&pair.a, loose.mr->rkey)->state,
				 SOFT_GRANT_DENIED);
		close_area(&loose);
		close_pair(&pair);
	}
}

/* The peer refuses what it would refuse without a grant. */
static void refuses_invalid_copies(void **state)
{
	const struct {
		uint64_t at;
		uint32_t length;
	} ranges[] = {
		{ (uint64_t)-1, 8 },	      { AREA - 7, 8 },	      { AREA, 1 },
		{ UINT64_MAX - IOVA - 3, 8 }, { (uint64_t)-IOVA, 8 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
		for (int reads = 0; reads < 2; reads++) {
			struct pair pair;

			open_with_leave(&pair, &stepped);
			memset(pair.area.memory, 'g', AREA);
			transfer(&pair.a, &pair.b,
				 reads ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
				 &pair.area.remote, ranges[i].at, ranges[i].length,
				 IBV_WC_REM_ACCESS_ERR);
			for (int k = 0; k < AREA; k++)
				assert_int_equal(pair.area.memory[k], 'g');
			close_pair(&pair);
		}
	}
}

/* When a queue pair loses a right, its peer loses it too. */
static void follows_the_rights_of_the_queue_pair(void **state)
{
	struct ibv_qp_attr attr = { .qp_access_flags = IBV_ACCESS_REMOTE_READ };
	struct pair pair;

	(void)state;
	open_with_leave(&pair, &stepped);
	assert_int_equal(soft->modify_qp(pair.b.qp, &attr, IBV_QP_ACCESS_FLAGS), 0);
	transfer(&pair.a, &pair.b, IBV_WR_RDMA_WRITE, &pair.area.remote, 0, 8,
		 IBV_WC_REM_ACCESS_ERR);
	assert_int_equal(pair.area.memory[0], 0);
	close_pair(&pair);
}

/* The key is stale, the owner may reuse the memory, and no mapping of it remains. */
static void deregistration_revokes_the_grant(void **state)
{
	int before = fixture_count_fds();
	struct pair pair;

	(void)state;
	open_with_leave(&pair, &stepped);
	assert_int_equal(count_areas(), 3); /* of the owner, the region, and the peer */
	assert_int_equal(soft->dereg_mr(pair.area.mr), 0);
	pair.area.mr = NULL;
	memset(pair.area.memory, 'o', AREA);
	step_often(&pair.a, &pair.b);
	assert_int_equal(count_areas(), 1);
	transfer(&pair.a, &pair.b, IBV_WR_RDMA_WRITE, &pair.area.remote, 0, 100,
		 IBV_WC_REM_ACCESS_ERR);
	for (int k = 0; k < AREA; k++)
		assert_int_equal(pair.area.memory[k], 'o');
	close_pair(&pair);
	assert_int_equal(fixture_count_fds(), before);
	assert_int_equal(count_areas(), 0);
}

/* Between two parts of a message that is copied in several steps. */
static void deregistration_ends_a_running_message(void **state)
{
	struct ibv_mr *mr;
	uint8_t *source = aligned_alloc(FIXTURE_PAGE, 2 << 20);
	struct ibv_sge sge = { .addr = (uintptr_t)source, .length = 2 << 20 };
	struct ibv_send_wr *bad, wr = {
		.wr_id = 1,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
	};
	struct pair pair;

	(void)state;
	assert_non_null(source);
	open_with_leave(&pair, &stepped);
	memset(source, 's', 2 << 20);
	mr = soft->reg_mr(pair.a.pd, source, 2 << 20, (uintptr_t)source, 0);
	assert_non_null(mr);
	sge.lkey = mr->lkey;
	wr.wr.rdma.rkey = pair.area.mr->rkey;
	wr.wr.rdma.remote_addr = IOVA;
	assert_int_equal(ibv_post_send(pair.a.qp, &wr, &bad), 0);
	while (pair.area.memory[0] != 's')
		fixture_step(&pair.a, NULL);
	assert_int_equal(pair.area.memory[(2 << 20) - 1], 0);
	assert_int_equal(soft->dereg_mr(pair.area.mr), 0);
	pair.area.mr = NULL;
	memset(pair.area.memory, 'o', AREA);
	miss_events(&pair.a); /* the message that revokes the grant */
	fixture_expect(&pair.a, pair.a.send_cq, &pair.b, 1, IBV_WC_REM_ACCESS_ERR);
	for (int k = 0; k < AREA; k++)
		assert_int_equal(pair.area.memory[k], 'o');
	assert_int_equal(soft->dereg_mr(mr), 0);
	close_pair(&pair);
	free(source);
}

/* Like an initiator in the middle of a copy. */
static void mark_busy(struct pair *pair)
{
	const struct soft_received_grant *taken = grant_for(&pair->a,
							    pair->area.mr->rkey);

	atomic_store(&fifo_of(&pair->a)->out->busy, taken->slot + 1);
}

static void *finish_copy(void *argument)
{
	struct pair *pair = argument;
	struct soft_direction *direction = fifo_of(&pair->a)->out;

	/* The owner does not continue before the copy has ended. */
	while (atomic_load(&direction->valid[atomic_load(&direction->busy) - 1]))
		;
	pair->area.memory[0] = 'l';
	atomic_store(&direction->busy, 0);
	return NULL;
}

static void deregistration_waits_for_a_copy(void **state)
{
	pthread_t thread;
	struct pair pair;

	(void)state;
	open_with_leave(&pair, &stepped);
	mark_busy(&pair);
	assert_int_equal(pthread_create(&thread, NULL, finish_copy, &pair), 0);
	assert_int_equal(soft->dereg_mr(pair.area.mr), 0);
	pair.area.mr = NULL;
	assert_int_equal(pair.area.memory[0], 'l');
	pthread_join(thread, NULL);
	assert_non_null(fifo_of(&pair.b));
	close_pair(&pair);
}

/* A peer stopped in a copy does not block the owner forever. */
static void stopped_copy_does_not_block_the_owner(void **state)
{
	struct pair pair;
	uint64_t start;

	(void)state;
	open_with_leave(&pair, &stepped);
	assert_int_equal(fixture_post_recv(&pair.b, 11, 0, 8), 0);
	mark_busy(&pair);
	start = fixture_milliseconds();
	assert_int_equal(soft->dereg_mr(pair.area.mr), 0);
	pair.area.mr = NULL;
	assert_in_range(fixture_milliseconds() - start, 900, 10000);
	assert_null(qp_of(&pair.b)->link.fifo);
	fixture_expect(&pair.b, pair.b.recv_cq, NULL, 11, IBV_WC_WR_FLUSH_ERR);
	close_pair(&pair);
}

/* Nor does a peer that was killed in a copy. */
static void killed_copy_does_not_block_the_owner(void **state)
{
	struct pair pair;
	uint64_t start;

	(void)state;
	open_with_leave(&pair, &stepped);
	mark_busy(&pair);
	/* As the kernel does, without a message. */
	shutdown(qp_of(&pair.a)->link.tx_fd, SHUT_RDWR);
	start = fixture_milliseconds();
	assert_int_equal(soft->dereg_mr(pair.area.mr), 0);
	pair.area.mr = NULL;
	assert_in_range(fixture_milliseconds() - start, 0, 500);
	close_pair(&pair);
}

/*
 * The bytes arrive before the receive is posted; the receive completes once, with them.
 */
static void waits_for_a_receive(void **state)
{
	struct fixture_options options = { .stepped = 1,
					   .rnr_retry = 7,
					   .min_rnr_timer = 1 };
	struct pair pair;
	struct ibv_wc wc;

	(void)state;
	open_with_leave(&pair, &options);
	fill(pair.a.memory, 1000, 3);
	assert_int_equal(fixture_post(&pair.a, IBV_WR_RDMA_WRITE_WITH_IMM, 1, 0, 1000,
				      &pair.area.remote, 0, IBV_SEND_SIGNALED),
			 0);
	/* Later requests must not be visible before. */
	assert_int_equal(fixture_post(&pair.a, IBV_WR_RDMA_WRITE, 2, 0, 10,
				      &pair.area.remote, 2000, IBV_SEND_SIGNALED),
			 0);
	assert_int_equal(fixture_post(&pair.a, IBV_WR_RDMA_WRITE, 3, 0, 60000,
				      &pair.area.remote, 3000, IBV_SEND_SIGNALED),
			 0);
	step_often(&pair.a, &pair.b);
	fixture_expect_none(&pair.a, pair.a.send_cq);
	assert_memory_equal(pair.area.memory, pair.a.memory, 1000);
	for (int i = 1000; i < 70000; i++)
		assert_int_equal(pair.area.memory[i], 0);
	/* Once is enough. */
	pair.area.memory[0] ^= 1;
	assert_int_equal(fixture_post_recv(&pair.b, 11, 0, 0), 0);
	wc = fixture_wait(&pair.b, pair.b.recv_cq, &pair.a);
	assert_int_equal(wc.status, IBV_WC_SUCCESS);
	assert_int_equal(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
	assert_int_equal(wc.byte_len, 1000);
	assert_int_equal(be32toh(wc.imm_data), 0x12345678);
	for (uint64_t id = 1; id <= 3; id++)
		fixture_expect(&pair.a, pair.a.send_cq, &pair.b, id, IBV_WC_SUCCESS);
	assert_int_equal(pair.area.memory[0], pair.a.memory[0] ^ 1);
	assert_memory_equal(pair.area.memory + 2000, pair.a.memory, 10);
	assert_memory_equal(pair.area.memory + 3000, pair.a.memory, 60000);
	close_pair(&pair);
}

/* No byte of a write is visible while a message before it has no receive. */
static void write_waits_behind_a_send(void **state)
{
	struct fixture_options options = { .stepped = 1,
					   .rnr_retry = 7,
					   .min_rnr_timer = 1 };
	const uint32_t lengths[] = { 10, 60000 };

	(void)state;
	for (int i = 0; i < 2; i++) {
		struct pair pair;

		open_with_leave(&pair, &options);
		fill(pair.a.memory, lengths[i], 4);
		assert_int_equal(fixture_post(&pair.a, IBV_WR_SEND, 1, 0, 8, NULL, 0, 0),
				 0);
		assert_int_equal(fixture_post(&pair.a, IBV_WR_RDMA_WRITE, 2, 0,
					      lengths[i], &pair.area.remote, 0,
					      IBV_SEND_SIGNALED),
				 0);
		step_often(&pair.a, &pair.b);
		for (uint32_t k = 0; k < lengths[i]; k++)
			assert_int_equal(pair.area.memory[k], 0);
		assert_int_equal(fixture_post_recv(&pair.b, 11, 0, 8), 0);
		fixture_expect(&pair.a, pair.a.send_cq, &pair.b, 2, IBV_WC_SUCCESS);
		fixture_expect(&pair.b, pair.b.recv_cq, &pair.a, 11, IBV_WC_SUCCESS);
		assert_memory_equal(pair.area.memory, pair.a.memory, lengths[i]);
		close_pair(&pair);
	}
}

/* A queue pair in ERR accepts nothing more, also while its last answer is in flight. */
static void refusal_ends_direct_copies(void **state)
{
	struct pair pair;

	(void)state;
	open_with_leave(&pair, &stepped);
	assert_non_null(fifo_of(&pair.b)->given[0].mr);
	assert_int_equal(fixture_post_recv(&pair.b, 11, 0, 8), 0);
	assert_int_equal(
		fixture_post(&pair.a, IBV_WR_SEND, 1, 0, 9, NULL, 0, IBV_SEND_SIGNALED),
		0);
	step_often(&pair.a, NULL);
	while (!qp_of(&pair.b)->link.closing)
		fixture_step(NULL, &pair.b);
	assert_null(fifo_of(&pair.b)->given[0].mr);
	assert_int_equal(atomic_load(&fifo_of(&pair.b)->in->valid[0]), 0);
	fixture_expect(&pair.b, pair.b.recv_cq, &pair.a, 11, IBV_WC_LOC_LEN_ERR);
	fixture_expect(&pair.a, pair.a.send_cq, &pair.b, 1, IBV_WC_REM_INV_REQ_ERR);
	close_pair(&pair);
}

static void counts_direct_writes(void **state)
{
	struct pier_provider_counter counter = { 0 };
	struct pair pair;

	(void)state;
	open_with_leave(&pair, &stepped);
	assert_int_equal(soft->bind_counter(pair.area.mr, &counter), 0);
	step_often(&pair.a, &pair.b);
	assert_false(has_leave(&pair.a, pair.area.mr->rkey));
	use_twice(&pair.a, &pair.b, &pair.area.remote, IBV_WR_RDMA_WRITE);
	assert_true(has_leave(&pair.a, pair.area.mr->rkey));
	for (uint64_t i = 3; i <= 7; i++) {
		uint64_t put = fifo_of(&pair.a)->put;

		transfer(&pair.a, &pair.b, IBV_WR_RDMA_WRITE, &pair.area.remote, i, 3,
			 IBV_WC_SUCCESS);
		assert_int_equal(fifo_of(&pair.a)->put, put + SOFT_HEADER_SIZE);
		assert_int_equal(atomic_load(&counter.value), i);
	}
	transfer(&pair.a, &pair.b, IBV_WR_RDMA_READ, &pair.area.remote, 0, 3,
		 IBV_WC_SUCCESS);
	assert_int_equal(atomic_load(&counter.value), 7);
	assert_int_equal(soft->bind_counter(pair.area.mr, NULL), 0);
	use_twice(&pair.a, &pair.b, &pair.area.remote, IBV_WR_RDMA_WRITE);
	check_both_ways(&pair);
	assert_int_equal(atomic_load(&counter.value), 7);
	close_pair(&pair);
}

/* A SKIP precedes the next header, and stands for requests that needed none. */
static void sends_skips_for_direct_copies(void **state)
{
	const enum ibv_wr_opcode opcodes[] = { IBV_WR_SEND, IBV_WR_RDMA_WRITE_WITH_IMM,
					       IBV_WR_RDMA_READ };
	struct fixture_options options = { .stepped = 1,
					   .rnr_retry = 7,
					   .min_rnr_timer = 1 };
	struct fixture_endpoint host;
	struct pair pair;

	(void)state;
	open_with_leave(&pair, &options);
	fixture_describe(&pair.b, &host);
	for (uint64_t i = 0; i < 12; i++) {
		enum ibv_wr_opcode opcode = opcodes[i % 3];
		bool receives = opcode != IBV_WR_RDMA_READ;

		for (uint64_t k = 0; k <= i % 4; k++)
			transfer(&pair.a, &pair.b, IBV_WR_RDMA_WRITE, &pair.area.remote,
				 i, 8, IBV_WC_SUCCESS);
		assert_int_equal(fixture_post(&pair.a, opcode, 2, 0, 8, &host, 100,
					      IBV_SEND_SIGNALED),
				 0);
		step_often(&pair.a, &pair.b);
		if (receives) /* it was not ready, and gets it twice */
			assert_int_equal(fixture_post_recv(&pair.b, 11, 0, 8), 0);
		fixture_expect(&pair.a, pair.a.send_cq, &pair.b, 2, IBV_WC_SUCCESS);
		if (receives)
			fixture_expect(&pair.b, pair.b.recv_cq, &pair.a, 11,
				       IBV_WC_SUCCESS);
		fixture_expect_none(&pair.b, pair.b.recv_cq);
	}
	/* It did not affect the other direction either. */
	fixture_describe(&pair.a, &host);
	for (int i = 0; i < 3; i++)
		transfer(&pair.b, &pair.a, opcodes[2], &host, 0, 8, IBV_WC_SUCCESS);
	close_pair(&pair);
}

/* A copy needs no answer, but a dead peer has no memory. */
static void detects_a_dead_peer(void **state)
{
	uint64_t deadline;
	struct pair pair;
	struct ibv_wc wc;

	(void)state;
	open_with_leave(&pair, &stepped);
	shutdown(qp_of(&pair.b)->link.tx_fd, SHUT_RDWR);
	miss_events(&pair.a);
	pier_soft_lock(&soft_context(pair.a.context)->engine);
	fifo_of(&pair.a)->last_checked = 0;
	pier_soft_unlock(&soft_context(pair.a.context)->engine);
	assert_int_equal(fixture_post(&pair.a, IBV_WR_RDMA_WRITE, 1, 0, 8,
				      &pair.area.remote, 0, IBV_SEND_SIGNALED),
			 0);
	/* Long before the peer's silence would exceed its limit. */
	deadline = fixture_milliseconds() + 5000;
	while (ibv_poll_cq(pair.a.send_cq, 1, &wc) == 0) {
		assert_true(fixture_milliseconds() < deadline);
		fixture_step(&pair.a, NULL);
	}
	assert_int_equal(wc.status, IBV_WC_RETRY_EXC_ERR);
	assert_int_equal(pair.area.memory[0], 0);
	close_pair(&pair);
}

/* The local memory vanishes: the request fails, and nothing else happens. */
static void survives_vanished_local_memory(void **state)
{
	const enum ibv_wr_opcode opcodes[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ };

	(void)state;
	for (int i = 0; i < 2; i++) {
		struct pair pair;
		struct ibv_mr *mr;
		char *memory = mmap(NULL, 2 * FIXTURE_PAGE, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		struct ibv_sge sge = { .addr = (uintptr_t)memory,
				       .length = 2 * FIXTURE_PAGE };
		struct ibv_send_wr *bad, wr = {
			.wr_id = 1,
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = opcodes[i],
		};

		assert_ptr_not_equal(memory, MAP_FAILED);
		open_with_leave(&pair, &stepped);
		mr = soft->reg_mr(pair.a.pd, memory, 2 * FIXTURE_PAGE, (uintptr_t)memory,
				  IBV_ACCESS_LOCAL_WRITE);
		assert_non_null(mr);
		assert_int_equal(mprotect(memory + FIXTURE_PAGE, FIXTURE_PAGE, PROT_NONE),
				 0);
		sge.lkey = mr->lkey;
		wr.wr.rdma.rkey = pair.area.mr->rkey;
		wr.wr.rdma.remote_addr = IOVA;
		assert_int_equal(ibv_post_send(pair.a.qp, &wr, &bad), 0);
		fixture_expect(&pair.a, pair.a.send_cq, &pair.b, 1, IBV_WC_LOC_PROT_ERR);
		assert_int_equal(soft->dereg_mr(mr), 0);
		munmap(memory, 2 * FIXTURE_PAGE);
		close_pair(&pair);
	}
}

/* More regions than grants allowed: the oldest grant is returned. */
static void returns_the_oldest_grant(void **state)
{
	enum {
		COUNT = SOFT_MAX_GRANTS + 6
	};
	struct area areas[COUNT];
	struct pair pair;
	int given = 0;

	(void)state;
	open_with_leave(&pair, &stepped);
	for (int i = 0; i < COUNT; i++) {
		open_area(&areas[i], &pair.b, WRITABLE, SEALS);
		use_twice(&pair.a, &pair.b, &areas[i].remote, IBV_WR_RDMA_WRITE);
		assert_true(has_leave(&pair.a, areas[i].mr->rkey));
		memset(pair.a.memory, i + 1, 10);
		transfer(&pair.a, &pair.b, IBV_WR_RDMA_WRITE, &areas[i].remote, 5, 10,
			 IBV_WC_SUCCESS);
		assert_memory_equal(areas[i].memory + 5, pair.a.memory, 10);
	}
	assert_false(has_leave(&pair.a, areas[0].mr->rkey));
	for (int i = 0; i < SOFT_MAX_GRANTS; i++)
		given += fifo_of(&pair.b)->given[i].mr != NULL;
	assert_int_equal(given, SOFT_MAX_GRANTS);
	assert_int_equal(count_areas(), 2 * (COUNT + 1) + SOFT_MAX_GRANTS);
	for (int i = 0; i < COUNT; i++)
		close_area(&areas[i]);
	close_pair(&pair);
	assert_int_equal(count_areas(), 0);
}

/* Grants from a hostile peer: none is accepted, and nothing else happens. */
static void rejects_false_grants(void **state)
{
	int sealed = memfd_create("false", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int loose = memfd_create("false", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int null = open("/dev/null", O_RDWR | O_CLOEXEC), before;
	const struct {
		int fd;
		uint64_t iova, offset, length;
	} grants[] = {
		{ sealed, 0, 0, 8193 },
		{ sealed, 0, 8192, 1 },
		{ sealed, 0, UINT64_MAX, 2 },
		{ sealed, 0, 1, UINT64_MAX },
		{ sealed, 0, 0, 0 },
		{ sealed, UINT64_MAX - 2, 0, 4096 },
		{ loose, 0, 0, 4096 },
		{ null, 0, 0, 4096 },
		{ sealed, 0, UINT64_MAX - 5, 6 },
	};
	struct pair pair;

	(void)state;
	assert_int_equal(ftruncate(sealed, 8192), 0);
	assert_int_equal(ftruncate(loose, 8192), 0);
	assert_int_equal(fcntl(sealed, F_ADD_SEALS, SEALS), 0);
	open_with_leave(&pair, &stepped);
	before = fixture_count_fds();
	pier_soft_lock(&soft_context(pair.a.context)->engine);
	for (size_t i = 0; i < sizeof(grants) / sizeof(grants[0]); i++) {
		struct soft_received_grant *taken = &fifo_of(&pair.a)->received[9];
		struct soft_grant_message message = {
			.key = 999,
			.slot = 9,
			.serial = 9,
			.iova = grants[i].iova,
			.count = 1,
			.fd_count = 1,
			.segments = { { grants[i].offset, grants[i].length, 0 } },
		};

		taken->key = 999;
		taken->state = SOFT_GRANT_REQUESTED;
		assert_true(pier_soft_accept_grant(&qp_of(&pair.a)->link, &message,
						   &grants[i].fd));
		assert_int_equal(taken->state, SOFT_GRANT_DENIED);
		assert_null(taken->mapped);
		/* No grant is requested any more. */
		assert_false(pier_soft_accept_grant(&qp_of(&pair.a)->link, &message,
						    &grants[i].fd));
	}
	pier_soft_unlock(&soft_context(pair.a.context)->engine);
	assert_int_equal(fixture_count_fds(), before);
	check_both_ways(&pair);
	close_pair(&pair);
	close(sealed);
	close(loose);
	close(null);
}

/* Without shared FIFOs a header with SOFT_FLAG_COPIED violates the protocol. */
static void rejects_the_copied_flag_on_a_socket(void **state)
{
	struct soft_header header = {
		.opcode = SOFT_WRITE,
		.flags = SOFT_FLAG_COPIED,
		.length = 8,
	};
	struct fixture_endpoint to_b;
	uint8_t bytes[SOFT_HEADER_SIZE];
	struct soft_fixture a, b;

	(void)state;
	setenv("PIER_SOFT_SHARED", "off", 1);
	fixture_open_pair(&a, &b, &stepped);
	assert_int_equal(fixture_post_recv(&b, 11, 0, 8), 0);
	fixture_describe(&b, &to_b);
	header.key = to_b.rkey;
	header.address = to_b.address;
	pier_soft_pack_header(&header, bytes);
	assert_int_equal(send(qp_of(&a)->link.tx_fd, bytes, sizeof(bytes), 0),
			 SOFT_HEADER_SIZE);
	fixture_expect(&b, b.recv_cq, &a, 11, IBV_WC_WR_FLUSH_ERR);
	assert_int_equal(qp_of(&b)->responder.expected, 0);
	fixture_close(&a);
	fixture_close(&b);
	unsetenv("PIER_SOFT_SHARED");
}

/* An end that is connected to itself grants its memory to itself. */
static void grants_memory_to_itself(void **state)
{
	struct fixture_endpoint self;
	struct area area;
	struct soft_fixture a;

	(void)state;
	fixture_open(&a, &stepped);
	fixture_describe(&a, &self);
	fixture_connect(&a, &self);
	open_area(&area, &a, WRITABLE, SEALS);
	use_twice(&a, NULL, &area.remote, IBV_WR_RDMA_WRITE);
	assert_true(has_leave(&a, area.mr->rkey));
	fill(a.memory, 100, 9);
	transfer(&a, NULL, IBV_WR_RDMA_WRITE, &area.remote, 1, 100, IBV_WC_SUCCESS);
	assert_memory_equal(area.memory + 1, a.memory, 100);
	close_area(&area);
	fixture_close(&a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(copies_from_host_memory),
		cmocka_unit_test(copies_from_steady_memory),
		cmocka_unit_test(reads_long_messages),
		cmocka_unit_test(copies_inline_data),
		cmocka_unit_test(copies_pieces_of_any_alignment),
		cmocka_unit_test(grants_only_suitable_memory),
		cmocka_unit_test(does_not_grant_a_single_right),
		cmocka_unit_test(grants_sealed_memory_for_reading),
		cmocka_unit_test(does_not_grant_part_of_a_file),
		cmocka_unit_test(grants_a_file_with_padding),
		cmocka_unit_test(does_not_grant_a_growing_file),
		cmocka_unit_test(refuses_invalid_copies),
		cmocka_unit_test(follows_the_rights_of_the_queue_pair),
		cmocka_unit_test(deregistration_revokes_the_grant),
		cmocka_unit_test(deregistration_ends_a_running_message),
		cmocka_unit_test(deregistration_waits_for_a_copy),
		cmocka_unit_test(stopped_copy_does_not_block_the_owner),
		cmocka_unit_test(killed_copy_does_not_block_the_owner),
		cmocka_unit_test(waits_for_a_receive),
		cmocka_unit_test(write_waits_behind_a_send),
		cmocka_unit_test(refusal_ends_direct_copies),
		cmocka_unit_test(counts_direct_writes),
		cmocka_unit_test(sends_skips_for_direct_copies),
		cmocka_unit_test(detects_a_dead_peer),
		cmocka_unit_test(survives_vanished_local_memory),
		cmocka_unit_test(returns_the_oldest_grant),
		cmocka_unit_test(rejects_false_grants),
		cmocka_unit_test(rejects_the_copied_flag_on_a_socket),
		cmocka_unit_test(grants_memory_to_itself),
	};

	setenv("PIER_SOFT_CMA", "off", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
