// SPDX-License-Identifier: BSD-3-Clause
#include "regions.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/dma-heap.h>
#include <linux/udmabuf.h>
#include <rdma/ib_user_verbs.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
	RTR_ATTEMPTS = 20
};

void fail(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	exit(1);
}

void open_device(struct device *device, const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	size_t i;

	must(list);
	for (i = 0; list[i] && strcmp(ibv_get_device_name(list[i]), name) != 0; i++)
		;
	if (!list[i])
		fail("no device %s", name);
	device->context = ibv_open_device(list[i]);
	must(device->context);
	ibv_free_device_list(list);
	device->pd = ibv_alloc_pd(device->context);
	must(device->pd);
}

void close_device(struct device *device)
{
	must(ibv_dealloc_pd(device->pd) == 0);
	must(ibv_close_device(device->context) == 0);
}

int make_udmabuf(struct buffer *buffer, size_t length, unsigned int memfd_flags)
{
	struct udmabuf_create create = { .flags = UDMABUF_FLAGS_CLOEXEC, .size = length };
	int device = open("/dev/udmabuf", O_RDWR | O_CLOEXEC);
	int saved;

	must(device >= 0);
	*buffer = (struct buffer){ .fd = -1, .length = length };
	buffer->memfd = memfd_create("test",
				     MFD_CLOEXEC | MFD_ALLOW_SEALING | memfd_flags);
	must(buffer->memfd >= 0);
	must(ftruncate(buffer->memfd, (off_t)length) == 0);
	must(fcntl(buffer->memfd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
	create.memfd = (uint32_t)buffer->memfd;
	buffer->map = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED,
			   buffer->memfd, 0);
	must(buffer->map != MAP_FAILED);
	buffer->fd = ioctl(device, UDMABUF_CREATE, &create);
	saved = errno;
	close(device);
	errno = saved;
	return buffer->fd < 0 ? -1 : 0;
}

int make_heap(struct buffer *buffer, size_t length, unsigned int fd_flags)
{
	struct dma_heap_allocation_data data = { .len = length, .fd_flags = fd_flags };
	int heap = open("/dev/dma_heap/system", O_RDWR | O_CLOEXEC);
	int result;

	must(heap >= 0);
	result = ioctl(heap, DMA_HEAP_IOCTL_ALLOC, &data);
	close(heap);
	if (result)
		return -1;
	*buffer = (struct buffer){ .fd = (int)data.fd, .memfd = -1, .length = length };
	if ((fd_flags & O_ACCMODE) == O_RDWR) {
		buffer->map = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED,
				   buffer->fd, 0);
		must(buffer->map != MAP_FAILED);
	}
	return 0;
}

void close_fds(struct buffer *buffer)
{
	if (buffer->fd >= 0)
		close(buffer->fd);
	if (buffer->memfd >= 0)
		close(buffer->memfd);
	buffer->fd = -1;
	buffer->memfd = -1;
}

void free_buffer(struct buffer *buffer)
{
	close_fds(buffer);
	if (buffer->map)
		munmap(buffer->map, buffer->length);
	buffer->map = NULL;
}

int register_region(struct region *region, const struct device *device, uint64_t offset,
		    uint64_t length, uint64_t iova, int fd, int access)
{
	struct uverbs_mr mr = { 0 };
	int err = uverbs_reg_dmabuf_mr(device->pd, offset, length, iova, fd, access, &mr);

	*region = (struct region){ mr, iova, length };
	return err;
}

int deregister_region(const struct region *region, const struct device *device)
{
	return uverbs_dereg_mr(device->context, &region->mr);
}

/* Uses the older interface, because the newer one has no such method. */
int reregister_region(const struct region *region, const struct device *device, int flags,
		      const struct ibv_pd *pd)
{
	struct {
		struct ib_uverbs_cmd_hdr header;
		struct ib_uverbs_rereg_mr command;
	} request = {
		.header = { .command = IB_USER_VERBS_CMD_REREG_MR,
			    .in_words = sizeof(request) / 4,
			    .out_words = sizeof(struct ib_uverbs_rereg_mr_resp) / 4 },
		.command = { .mr_handle = region->mr.handle,
			     .flags = (uint32_t)flags,
			     .pd_handle = pd->handle,
			     .access_flags = IBV_ACCESS_LOCAL_WRITE },
	};
	struct ib_uverbs_rereg_mr_resp response;

	request.command.response = (uintptr_t)&response;
	return write(device->context->cmd_fd, &request, sizeof(request)) < 0 ? -errno : 0;
}

/* Finds the entry of a RoCE v2 address, preferably an IPv4 one. */
static int find_gid(const struct device *device, union ibv_gid *ret_gid)
{
	static const unsigned char mapped[12] = { [10] = 0xff, [11] = 0xff };
	struct ibv_gid_entry entries[64];
	ssize_t count = ibv_query_gid_table(device->context, entries, 64, 0);
	ssize_t i, found = -1;

	for (i = 0; i < count; i++) {
		if (entries[i].gid_type != IBV_GID_TYPE_ROCE_V2)
			continue;
		if (found < 0 || memcmp(entries[i].gid.raw, mapped, sizeof(mapped)) == 0)
			found = i;
	}
	if (found < 0)
		fail("no address of RoCE v2");
	*ret_gid = entries[found].gid;
	return (int)entries[found].gid_index;
}

static void make_qp(struct pair *pair, int i, const struct device *device)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4,
			 .max_recv_wr = 1,
			 .max_send_sge = 1,
			 .max_recv_sge = 1 },
	};

	pair->cq[i] = ibv_create_cq(device->context, 16, NULL, NULL, 0);
	must(pair->cq[i]);
	init.send_cq = init.recv_cq = pair->cq[i];
	pair->qp[i] = ibv_create_qp(device->pd, &init);
	must(pair->qp[i]);
}

/*
 * The kernel resolves the peer's MAC address here with a timeout of one second
 * (rdma_addr_find_l2_eth_by_grh()). A guest under load can exceed it for a cold
 * neighbour, so ETIMEDOUT means "try again".
 */
static int go_to_rtr(struct ibv_qp *qp, struct ibv_qp_attr *attr)
{
	int error = -1;

	errno = ETIMEDOUT;
	for (int i = 0; i < RTR_ATTEMPTS && error && errno == ETIMEDOUT; i++)
		error = ibv_modify_qp(qp, attr,
				      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
					      IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					      IBV_QP_MAX_DEST_RD_ATOMIC |
					      IBV_QP_MIN_RNR_TIMER);
	return error;
}

static void bring_up(struct ibv_qp *qp, const struct device *device,
		     const struct ibv_qp *peer, const struct device *peer_device)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT,
				    .port_num = 1,
				    .qp_access_flags = ACCESS_ALL };
	union ibv_gid own;

	must(ibv_modify_qp(qp, &attr,
			   IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				   IBV_QP_ACCESS_FLAGS) == 0);
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = peer->qp_num;
	attr.max_dest_rd_atomic = 1;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.grh.hop_limit = 1;
	attr.ah_attr.grh.sgid_index = (uint8_t)find_gid(device, &own);
	find_gid(peer_device, &attr.ah_attr.grh.dgid);
	must(go_to_rtr(qp, &attr) == 0);
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 1;
	must(ibv_modify_qp(qp, &attr,
			   IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				   IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				   IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

void connect_pair(struct pair *pair, const struct device *from, const struct device *to)
{
	make_qp(pair, 0, from);
	make_qp(pair, 1, to);
	bring_up(pair->qp[0], from, pair->qp[1], to);
	bring_up(pair->qp[1], to, pair->qp[0], from);
}

void disconnect_pair(struct pair *pair)
{
	for (int i = 0; i < 2; i++) {
		must(ibv_destroy_qp(pair->qp[i]) == 0);
		must(ibv_destroy_cq(pair->cq[i]) == 0);
	}
}

enum ibv_wc_status transfer(struct pair *pair, enum ibv_wr_opcode opcode,
			    struct ibv_sge *local, uint64_t remote, uint32_t rkey)
{
	struct ibv_send_wr wr = { .opcode = opcode,
				  .sg_list = local,
				  .num_sge = 1,
				  .send_flags = IBV_SEND_SIGNALED };
	struct ibv_send_wr *bad;
	struct ibv_wc wc;
	int count;

	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = remote;
		wr.wr.atomic.rkey = rkey;
		wr.wr.atomic.compare_add = 1;
	} else {
		wr.wr.rdma.remote_addr = remote;
		wr.wr.rdma.rkey = rkey;
	}
	must(ibv_post_send(pair->qp[0], &wr, &bad) == 0);
	while ((count = ibv_poll_cq(pair->cq[0], 1, &wc)) == 0)
		;
	must(count == 1);
	return wc.status;
}
