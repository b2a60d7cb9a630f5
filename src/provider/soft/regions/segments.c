/* SPDX-License-Identifier: BSD-3-Clause */
#include <errno.h>
#include <fcntl.h>
#include <linux/dma-buf.h>
#include <linux/magic.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "segments.h"
#include "core/checked.h"
#include "core/error.h"
#include "core/fd.h"
#include "provider/provider.h"

/*
 * How much of the fds, the address space and the mappings of the process soft0 leaves to
 * others.
 *
 * Peers choose the size of their regions. So the mappings of regions that they grant
 * have bounds of their own, far below those of the process: 2^47 bytes of user space on
 * x86-64, and vm.max_map_count mappings (65530 by default). Global of necessity, as the
 * address space is.
 */

enum {
	MAX_MAPPED_PIECES = 8192
};

#define MAX_MAPPED_BYTES (UINT64_C(1) << 42)

static struct {
	_Atomic uint64_t bytes;
	_Atomic uint64_t segments;
} mapped;

bool pier_soft_is_spare(int fd)
{
	struct rlimit limit;

	return getrlimit(RLIMIT_NOFILE, &limit) == 0 && (rlim_t)fd < limit.rlim_cur / 2;
}

bool pier_soft_may_write(uint64_t offset, uint64_t length)
{
	struct rlimit limit;
	uint64_t end;

	return pier_add_u64(offset, length, &end) &&
	       getrlimit(RLIMIT_FSIZE, &limit) == 0 && end <= limit.rlim_cur;
}

/*
 * A peer can punch holes into a file that it shares, and the pages of a memfd are
 * accounted when they are touched (VM_NORESERVE). With vm.overcommit_memory=2 that fails
 * at the commit limit, which is a SIGBUS: shmem_fault() in the kernel. Without /proc the
 * answer is no.
 */
bool pier_soft_may_touch_holes(void)
{
	pier_auto_fd fd = open("/proc/sys/vm/overcommit_memory", O_RDONLY | O_CLOEXEC);
	char mode = '2';

	return fd >= 0 && read(fd, &mode, 1) == 1 && mode != '2';
}

static uint64_t max_mapped_bytes(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur / 4 < MAX_MAPPED_BYTES)
		return limit.rlim_cur / 4;
	return MAX_MAPPED_BYTES;
}

static bool reserve_below(_Atomic uint64_t *used, uint64_t wanted, uint64_t limit)
{
	uint64_t before = atomic_load(used);

	do {
		if (wanted > limit || before > limit - wanted)
			return false;
	} while (!atomic_compare_exchange_weak(used, &before, before + wanted));
	return true;
}

bool pier_soft_reserve_mapping(uint64_t bytes, uint32_t segments)
{
	if (!reserve_below(&mapped.bytes, bytes, max_mapped_bytes()))
		return false;
	if (reserve_below(&mapped.segments, segments, MAX_MAPPED_PIECES))
		return true;
	atomic_fetch_sub(&mapped.bytes, bytes);
	return false;
}

void pier_soft_release_mapping(uint64_t bytes, uint32_t segments)
{
	atomic_fetch_sub(&mapped.bytes, bytes);
	atomic_fetch_sub(&mapped.segments, segments);
}

/* Whether the kernel has MADV_POPULATE_*: tried on memory where it must work. */
static bool kernel_populates(int advice)
{
	size_t page = sysconf(_SC_PAGESIZE);
	void *memory = mmap(NULL, page, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	bool known;

	if (memory == MAP_FAILED)
		return true;
	known = madvise(memory, page, advice) == 0;
	munmap(memory, page);
	return known;
}

/*
 * Whether all pages of the memory are mapped. msync(2) fails if one is not; MS_ASYNC does
 * nothing else since Linux 2.6.19.
 */
static bool is_mapped(const char *memory, uint64_t length)
{
	uint64_t skipped = (uintptr_t)memory & ((uint64_t)sysconf(_SC_PAGESIZE) - 1);

	return msync((void *)(memory - skipped), length + skipped, MS_ASYNC) == 0;
}

/*
 * Fails where get_user_pages() would, on memory that is absent, not accessible, or a
 * mapping of page frames (EINVAL here). The rights that write are those of
 * ib_access_writable().
 */
int pier_soft_populate(const char *memory, uint64_t length, int access)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	char *first = (char *)((uintptr_t)memory & ~(page - 1));
	size_t size = (((uintptr_t)memory + length + page - 1) & ~(page - 1)) -
		      (uintptr_t)first;
	const int writing = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			    IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;
	int advice = access & writing ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;

	if (madvise(first, size, advice) == 0)
		return 0;
	if (errno == EINVAL && !kernel_populates(advice)) {
		/* Before Linux 5.14: check at least that all of it is mapped. */
		return is_mapped(first, size) ? 0 : EFAULT;
	}
	return errno == ENOMEM || errno == EINVAL || errno == EPERM ? EFAULT : errno;
}

/* Makes host memory reachable. */
static int attach_host(struct soft_segment *segment,
		       const struct pier_provider_part *part, int access)
{
	uint64_t page = sysconf(_SC_PAGESIZE), end;
	int error;

	if (part->length == 0)
		return pier_fail(EINVAL, "soft0: a segment of memory has length 0");
	if (!pier_add_u64((uintptr_t)part->addr, part->length, &end) ||
	    !pier_round_up_u64(end, page, &end))
		return pier_fail(EINVAL,
				 "soft0: address %p plus length %llu is past the end of "
				 "memory",
				 part->addr, (unsigned long long)part->length);
	segment->memory = part->addr;
	if (access & IBV_ACCESS_ON_DEMAND)
		return 0;
	/* In place of pinning by the kernel. */
	error = pier_soft_populate(part->addr, part->length, access);
	if (error)
		return pier_fail(error,
				 "soft0: memory %p, %llu bytes cannot be pinned: "
				 "it is not all mapped, or not as the access "
				 "flags %#x need it",
				 part->addr, (unsigned long long)part->length, access);
	return 0;
}

enum kind {
	KIND_OTHER,
	KIND_DMABUF,
	KIND_MEMFD,
	KIND_HUGE_MEMFD
};

/*
 * The file system decides, because neither the name of a file nor a FUSE server can
 * imitate the type that fstatfs(2) reports. But fstatfs(2) may wait for a FUSE server
 * without limit, so it is used only for fds of the application itself, or with seals.
 * Only tmpfs and hugetlbfs have seals: memfd_file_seals_ptr() in the kernel. Files of a
 * mounted tmpfs count as memfds whose seals are missing.
 */
static enum kind kind_of(int fd)
{
	struct statfs fs;

	if (fstatfs(fd, &fs) < 0)
		return KIND_OTHER;
	switch ((uint32_t)fs.f_type) {
	case DMA_BUF_MAGIC:
		return KIND_DMABUF;
	case TMPFS_MAGIC:
		return fcntl(fd, F_GET_SEALS) >= 0 ? KIND_MEMFD : KIND_OTHER;
	case HUGETLBFS_MAGIC:
		return fcntl(fd, F_GET_SEALS) >= 0 ? KIND_HUGE_MEMFD : KIND_OTHER;
	default:
		return KIND_OTHER;
	}
}

static bool has_seals(int fd, enum kind kind, int seals)
{
	return kind == KIND_MEMFD && (fcntl(fd, F_GET_SEALS) & seals) == seals;
}

/*
 * The fd may come from a peer. F_GET_SEALS fails at once on files without seals and does
 * not ask their file system; after it, fstatfs(2) only separates small pages from huge
 * ones.
 */
bool pier_soft_is_fixed(int fd)
{
	return fcntl(fd, F_GET_SEALS) >= 0 &&
	       has_seals(fd, kind_of(fd), SOFT_FINAL_SEALS);
}

/* A dma-buf reports its size by lseek(2) only, which would move the offset of a memfd. */
static off_t size_of(int fd, enum kind kind)
{
	struct stat status;

	if (kind == KIND_DMABUF)
		return lseek(fd, 0, SEEK_END);
	return fstat(fd, &status) == 0 ? status.st_size : -1;
}

static int check_range(const struct pier_provider_part *part, enum kind kind,
		       uint64_t *ret_size)
{
	off_t size = size_of(part->fd, kind);

	*ret_size = size < 0 ? 0 : (uint64_t)size;
	if (part->length > 0 && pier_range_fits(part->offset, part->length, *ret_size))
		return 0;
	return pier_fail(EINVAL,
			 "soft0: offset %#llx and length %llu: empty, or not inside the "
			 "%lld bytes of fd %d",
			 (unsigned long long)part->offset,
			 (unsigned long long)part->length, (long long)size, part->fd);
}

/*
 * Some exporters' memory cannot be mapped for the CPU: dma_buf_mmap() in the kernel
 * returns EINVAL if the exporter has no mmap operation, and that of NVIDIA's driver
 * returns the kernel's ENOTSUPP, which has no name in user space.
 */
static int fail_map(const struct soft_segment *segment,
		    const struct pier_provider_part *part, int error)
{
	if (!segment->dmabuf || error == ENOMEM || error == EACCES || error == EPERM)
		return pier_fail(
			error, "soft0: fd %d cannot be mapped at offset %#llx: %s",
			part->fd, (unsigned long long)part->offset, strerror(error));
	return pier_fail(EOPNOTSUPP,
			 "soft0 reaches dma-bufs by the CPU, and that of fd %d has no "
			 "mapping for it (mmap: errno %d): its memory can be staged "
			 "(PIER_POLICY_BOUNCE)",
			 part->fd, error);
}

static int map_window(struct soft_segment *segment, const struct pier_provider_part *part,
		      int access)
{
	uint64_t page = sysconf(_SC_PAGESIZE);
	uint64_t skipped = part->offset & (page - 1);
	int protection = PROT_READ;
	void *window;

	if (access & IBV_ACCESS_LOCAL_WRITE)
		protection |= PROT_WRITE;
	segment->mapping_size = (skipped + part->length + page - 1) & ~(page - 1);
	window = mmap(NULL, segment->mapping_size, protection, MAP_SHARED, part->fd,
		      (off_t)(part->offset - skipped));
	if (window == MAP_FAILED)
		return fail_map(segment, part, errno);
	segment->mapping = window;
	segment->memory = (char *)window + skipped;
	return 0;
}

/*
 * The mapping keeps the buffer alive. The fd of a dma-buf is kept to bracket accesses,
 * that of a memfd for grants to peers, which are optional: not if fds are scarce.
 */
static int keep_fd(struct soft_segment *segment, int fd)
{
	segment->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (segment->dmabuf)
		return segment->fd < 0 ? -errno : 0;
	if (segment->fd >= 0 && !pier_soft_is_spare(segment->fd))
		segment->fd = pier_close_fd(segment->fd);
	return 0;
}

/* Maps a part of a dma-buf or memfd. Also after a failure detach_segment() follows. */
static int attach_fd(struct soft_segment *segment, const struct pier_provider_part *part,
		     int access)
{
	enum kind kind;
	int error;

	/* pier_probe_device() asks with fd -1: no sentence, since nothing failed. */
	if (part->fd < 0)
		return -EBADF;
	if (fcntl(part->fd, F_GETFD) < 0)
		return pier_fail(EBADF, "soft0: fd %d is not open", part->fd);
	kind = kind_of(part->fd);
	if (kind == KIND_OTHER)
		return pier_fail(EINVAL, "soft0: fd %d is neither a dma-buf nor a memfd",
				 part->fd);
	segment->offset = part->offset;
	segment->dmabuf = kind == KIND_DMABUF;
	/* Seals before size: from then on the size cannot shrink. */
	/*
	 * A dma-buf never changes its size. A memfd with F_SEAL_SHRINK cannot shrink, and
	 * holes in it are filled when they are touched. But a hole in huge pages may find
	 * no free huge page, which is a SIGBUS (hugetlb_no_page() in the kernel).
	 */
	segment->steady = segment->dmabuf || has_seals(part->fd, kind, F_SEAL_SHRINK);
	segment->fixed = has_seals(part->fd, kind, SOFT_FINAL_SEALS);
	segment->readonly = has_seals(part->fd, kind, F_SEAL_FUTURE_WRITE) ||
			    has_seals(part->fd, kind, F_SEAL_WRITE);
	error = check_range(part, kind, &segment->file_size);
	if (error)
		return error;
	if (!segment->fd_shared)
		error = keep_fd(segment, part->fd);
	if (error)
		return error;
	return map_window(segment, part, access);
}

static void detach_segment(struct soft_segment *segment)
{
	if (segment->mapping)
		munmap(segment->mapping, segment->mapping_size);
	if (!segment->fd_shared)
		segment->fd = pier_close_fd(segment->fd);
}

void pier_soft_sync(int fd, uint64_t flags)
{
	struct dma_buf_sync sync = { .flags = flags };
	int result, saved = errno;

	/* Repeated, as dma-buf.h demands: the posting thread may get signals. */
	do {
		result = ioctl(fd, DMA_BUF_IOCTL_SYNC, &sync);
	} while (result < 0 && pier_is_transient(errno));
	errno = saved; /* the copy's, which the caller still reads */
}

const struct soft_segment *pier_soft_find_segment(const struct soft_mr *mr,
						  uint64_t offset)
{
	const struct soft_segment *first = mr->segments;

	for (uint32_t count = mr->count; count > 1;) {
		uint32_t half = count / 2;

		if (first[half].start <= offset) {
			first += half;
			count -= half;
		} else {
			count = half;
		}
	}
	return first;
}

bool pier_soft_is_present(const struct soft_mr *mr, uint64_t address, uint64_t length)
{
	uint64_t offset = address - mr->iova, end = offset + length;
	const struct soft_segment *segment = pier_soft_find_segment(mr, offset);
	bool present = true;

	if (!(mr->access & IBV_ACCESS_ON_DEMAND))
		return true;
	for (; offset < end && present; segment++) {
		uint64_t stop = segment->end < end ? segment->end : end;

		present = is_mapped(segment->memory + (offset - segment->start),
				    stop - offset);
		offset = stop;
	}
	return present;
}

void pier_soft_free_mr(struct soft_mr *mr)
{
	for (uint32_t i = 0; i < mr->count; i++)
		detach_segment(&mr->segments[i]);
	free(mr);
}

void pier_soft_return_parts(struct soft_mr *mr)
{
	for (uint32_t i = 0; i < mr->count; i++) {
		if (mr->segments[i].lender)
			mr->segments[i].lender->joins--;
		mr->segments[i].lender = NULL;
	}
}

/* Pieces of one dma-buf or memfd share the fd. */
static int find_kept_fd(const struct soft_mr *mr, const struct pier_provider_part *parts,
			int fd)
{
	for (uint32_t i = mr->count; i-- > 0;) {
		if (parts[i].fd == fd)
			return mr->segments[i].fd;
	}
	return -1;
}

static int attach_part(struct soft_mr *mr, const struct pier_provider_part *parts)
{
	const struct pier_provider_part *part = &parts[mr->count];
	struct soft_segment *segment = &mr->segments[mr->count];

	segment->start = mr->ibv.length;
	segment->end = segment->start + part->length;
	segment->fd = part->fd < 0 ? -1 : find_kept_fd(mr, parts, part->fd);
	segment->fd_shared = segment->fd >= 0;
	mr->ibv.length = segment->end;
	mr->count++;
	if (part->fd == -1)
		return attach_host(segment, part, mr->access);
	return attach_fd(segment, part, mr->access);
}

struct soft_mr *pier_soft_allocate_mr(const struct pier_provider_part *parts,
				      uint32_t count, uint64_t iova, int access)
{
	struct soft_mr *mr = calloc(1, sizeof(*mr) + count * sizeof(mr->segments[0]));

	if (!mr)
		return NULL;
	/* As libibverbs sets it: the offset in the fd, not the iova. */
	mr->ibv.addr = parts[0].fd == -1 ? parts[0].addr
					 : (void *)(uintptr_t)parts[0].offset;
	mr->iova = iova;
	mr->access = access;
	pier_list_init(&mr->grants);
	return mr;
}

int pier_soft_attach_parts(struct soft_mr *mr, const struct pier_provider_part *parts,
			   uint32_t count)
{
	int error = 0;

	while (!error && mr->count < count)
		error = attach_part(mr, parts);
	return error;
}
