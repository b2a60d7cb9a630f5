// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * An exporter of dma-bufs whose CPU access has faults to order, and which
 * counts what importers do: for the tests of rxe_dmabuf.c.
 */

#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/dma-buf.h>
#include <linux/dma-fence.h>
#include <linux/dma-resv.h>
#include <linux/io.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>
#include <linux/workqueue.h>

#include "faulty_exporter.h"

#define MAX_ORDER_HERE	4
#define MAX_PAGES	(1 << MAX_ORDER_HERE)
/* above any memory of the guest */
#define NO_MEMORY_HERE	(1ULL << 37)
#define LATE_MS		300
/* the bytes of revoked memory */
#define TAKEN_AWAY	0xee

struct faulty_buffer {
	u32 kind;
	u32 npages;
	/* written under the reservation lock of the dma-buf */
	bool revoked;
	struct page *pages[MAX_PAGES];
	void *vaddr;
	/* begun and not ended, by direction */
	atomic_t accesses[DMA_NONE];
	struct dma_fence *fence;
	struct delayed_work arrive;
};

static atomic_t live = ATOMIC_INIT(0);
static atomic_t unbalanced = ATOMIC_INIT(0);

/* a fence of a buffer */

static const char *faulty_fence_name(struct dma_fence *fence)
{
	return KBUILD_MODNAME;
}

static const struct dma_fence_ops faulty_fence_ops = {
	.get_driver_name = faulty_fence_name,
	.get_timeline_name = faulty_fence_name,
};

static DEFINE_SPINLOCK(faulty_fence_lock);

static void faulty_fill(struct faulty_buffer *buffer)
{
	u32 i;

	for (i = 0; i < buffer->npages; i++)
		memset(page_address(buffer->pages[i]), i + 1, PAGE_SIZE);
}

static void faulty_arrive(struct work_struct *work)
{
	struct faulty_buffer *buffer =
		container_of(work, struct faulty_buffer, arrive.work);

	faulty_fill(buffer);
	dma_fence_signal(buffer->fence);
}

static int faulty_add_fence(struct dma_buf *dmabuf)
{
	struct faulty_buffer *buffer = dmabuf->priv;
	int err;

	buffer->fence = kzalloc(sizeof(*buffer->fence), GFP_KERNEL);
	if (!buffer->fence)
		return -ENOMEM;

	dma_fence_init(buffer->fence, &faulty_fence_ops, &faulty_fence_lock,
		       dma_fence_context_alloc(1), 1);
	dma_resv_lock(dmabuf->resv, NULL);
	err = dma_resv_reserve_fences(dmabuf->resv, 1);
	if (!err)
		dma_resv_add_fence(dmabuf->resv, buffer->fence,
				   DMA_RESV_USAGE_KERNEL);
	dma_resv_unlock(dmabuf->resv);
	schedule_delayed_work(&buffer->arrive, msecs_to_jiffies(LATE_MS));

	return err;
}

/* the dma-buf */

static int faulty_vmap(struct dma_buf *dmabuf, struct iosys_map *map)
{
	struct faulty_buffer *buffer = dmabuf->priv;
	size_t size = buffer->npages * PAGE_SIZE;
	struct page *pages[MAX_PAGES];
	u32 i;

	switch (buffer->kind) {
	case FAULTY_LINEAR:
		iosys_map_set_vaddr(map, page_address(buffer->pages[0]));
		return 0;
	case FAULTY_IOMEM:
	case FAULTY_NO_PAGES:
		buffer->vaddr = (void __force *)ioremap(NO_MEMORY_HERE, size);
		break;
	default:
		for (i = 0; i < buffer->npages; i++)
			pages[i] = buffer->kind == FAULTY_REPEATED ?
				   buffer->pages[0] : buffer->pages[i];
		buffer->vaddr = vmap(pages, buffer->npages, VM_MAP, PAGE_KERNEL);
		break;
	}
	if (!buffer->vaddr)
		return -ENOMEM;

	if (buffer->kind == FAULTY_IOMEM)
		iosys_map_set_vaddr_iomem(map, (void __iomem __force *)buffer->vaddr);
	else
		iosys_map_set_vaddr(map, buffer->vaddr +
				    (buffer->kind == FAULTY_UNALIGNED ? 8 : 0));

	return 0;
}

static void faulty_vunmap(struct dma_buf *dmabuf, struct iosys_map *map)
{
	struct faulty_buffer *buffer = dmabuf->priv;

	if (buffer->kind == FAULTY_IOMEM || buffer->kind == FAULTY_NO_PAGES)
		iounmap((void __iomem __force *)buffer->vaddr);
	else if (buffer->kind != FAULTY_LINEAR)
		vunmap(buffer->vaddr);
	buffer->vaddr = NULL;
}

static int faulty_begin(struct dma_buf *dmabuf, enum dma_data_direction dir)
{
	struct faulty_buffer *buffer = dmabuf->priv;

	if (buffer->kind == FAULTY_BEGIN)
		return -EIO;
	/*
	 * As vfio_pci_dma_buf_map(). Not in vmap, which the core does not call
	 * while other importers have a mapping.
	 */
	if (READ_ONCE(buffer->revoked))
		return -ENODEV;

	atomic_inc(&buffer->accesses[dir]);

	return 0;
}

static int faulty_end(struct dma_buf *dmabuf, enum dma_data_direction dir)
{
	struct faulty_buffer *buffer = dmabuf->priv;

	if (!buffer->vaddr && buffer->kind != FAULTY_LINEAR)
		atomic_inc(&unbalanced);
	atomic_dec(&buffer->accesses[dir]);

	return 0;
}

static struct sg_table *faulty_map(struct dma_buf_attachment *attach,
				   enum dma_data_direction dir)
{
	return ERR_PTR(-EOPNOTSUPP);
}

static void faulty_unmap(struct dma_buf_attachment *attach,
			 struct sg_table *table, enum dma_data_direction dir)
{
}

/*
 * Nobody maps for DMA here; with these the exporter is one that tells its
 * importers of moves.
 */
static int faulty_pin(struct dma_buf_attachment *attach)
{
	return -EOPNOTSUPP;
}

static void faulty_unpin(struct dma_buf_attachment *attach)
{
}

/* An importer that was told of the revocation wrote nevertheless. */
static bool faulty_is_touched(const struct faulty_buffer *buffer)
{
	u32 i;

	for (i = 0; buffer->revoked && i < buffer->npages; i++)
		if (memchr_inv(page_address(buffer->pages[i]), TAKEN_AWAY,
			       PAGE_SIZE))
			return true;

	return false;
}

static void faulty_free(struct faulty_buffer *buffer)
{
	u32 i;

	if (buffer->fence) {
		flush_delayed_work(&buffer->arrive);
		dma_fence_put(buffer->fence);
	}
	if (buffer->kind == FAULTY_REPEATED && buffer->pages[0])
		__free_pages(buffer->pages[0], MAX_ORDER_HERE);
	for (i = 0; buffer->kind != FAULTY_REPEATED && i < buffer->npages; i++)
		if (buffer->pages[i])
			__free_page(buffer->pages[i]);
	kfree(buffer);
}

static void faulty_release(struct dma_buf *dmabuf)
{
	struct faulty_buffer *buffer = dmabuf->priv;
	int i;

	for (i = 0; i < DMA_NONE; i++)
		if (atomic_read(&buffer->accesses[i]))
			atomic_inc(&unbalanced);
	if (faulty_is_touched(buffer))
		atomic_inc(&unbalanced);
	faulty_free(buffer);
	atomic_dec(&live);
}

static const struct dma_buf_ops faulty_ops = {
	.map_dma_buf = faulty_map,
	.unmap_dma_buf = faulty_unmap,
	.vmap = faulty_vmap,
	.vunmap = faulty_vunmap,
	.begin_cpu_access = faulty_begin,
	.end_cpu_access = faulty_end,
	.release = faulty_release,
};

static const struct dma_buf_ops faulty_ops_no_vmap = {
	.map_dma_buf = faulty_map,
	.unmap_dma_buf = faulty_unmap,
	.begin_cpu_access = faulty_begin,
	.end_cpu_access = faulty_end,
	.release = faulty_release,
};

static const struct dma_buf_ops faulty_ops_revocable = {
	.pin = faulty_pin,
	.unpin = faulty_unpin,
	.map_dma_buf = faulty_map,
	.unmap_dma_buf = faulty_unmap,
	.vmap = faulty_vmap,
	.vunmap = faulty_vunmap,
	.begin_cpu_access = faulty_begin,
	.end_cpu_access = faulty_end,
	.release = faulty_release,
};

static const struct dma_buf_ops *faulty_ops_of(u32 kind)
{
	if (kind == FAULTY_NO_VMAP)
		return &faulty_ops_no_vmap;
	return kind == FAULTY_REVOCABLE ? &faulty_ops_revocable : &faulty_ops;
}

/* the device */

static int faulty_alloc_pages(struct faulty_buffer *buffer)
{
	bool together = buffer->kind == FAULTY_LINEAR ||
			buffer->kind == FAULTY_REPEATED;
	struct page *first = NULL;
	u32 i;

	if (together) {
		first = alloc_pages(GFP_KERNEL | __GFP_ZERO |
				    (buffer->kind == FAULTY_REPEATED ? __GFP_COMP : 0),
				    MAX_ORDER_HERE);
		if (!first)
			return -ENOMEM;
	}
	if (buffer->kind == FAULTY_LINEAR)
		split_page(first, MAX_ORDER_HERE);

	/* from behind, so that pages in a row are not neighbours */
	for (i = buffer->npages; i-- > 0;) {
		buffer->pages[i] = together ? first + i :
				   alloc_page(GFP_KERNEL | __GFP_ZERO);
		if (!buffer->pages[i])
			return -ENOMEM;
	}

	return 0;
}

static struct dma_buf *faulty_make(u32 kind, u32 npages)
{
	DEFINE_DMA_BUF_EXPORT_INFO(info);
	struct faulty_buffer *buffer;
	struct dma_buf *dmabuf;
	int err;

	buffer = kzalloc(sizeof(*buffer), GFP_KERNEL);
	if (!buffer)
		return ERR_PTR(-ENOMEM);
	buffer->kind = kind;
	buffer->npages = npages;
	INIT_DELAYED_WORK(&buffer->arrive, faulty_arrive);
	err = faulty_alloc_pages(buffer);
	if (err)
		goto err_free;
	if (kind != FAULTY_LATE)
		faulty_fill(buffer);

	info.ops = faulty_ops_of(kind);
	info.size = npages * PAGE_SIZE;
	info.flags = O_RDWR;
	info.priv = buffer;
	dmabuf = dma_buf_export(&info);
	if (IS_ERR(dmabuf)) {
		err = PTR_ERR(dmabuf);
		goto err_free;
	}
	atomic_inc(&live);

	return dmabuf;

err_free:
	faulty_free(buffer);
	return ERR_PTR(err);
}

static long faulty_revoke(int fd)
{
	struct dma_buf *dmabuf = dma_buf_get(fd);
	struct faulty_buffer *buffer;
	u32 i;

	if (IS_ERR(dmabuf))
		return PTR_ERR(dmabuf);
	if (dmabuf->ops != &faulty_ops_revocable) {
		dma_buf_put(dmabuf);
		return -EINVAL;
	}

	buffer = dmabuf->priv;
	dma_resv_lock(dmabuf->resv, NULL);
	WRITE_ONCE(buffer->revoked, true);
	dma_buf_move_notify(dmabuf);
	for (i = 0; i < buffer->npages; i++)
		memset(page_address(buffer->pages[i]), TAKEN_AWAY, PAGE_SIZE);
	dma_resv_unlock(dmabuf->resv);
	dma_buf_put(dmabuf);

	return 0;
}

static long faulty_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct faulty_export request;
	struct dma_buf *dmabuf;
	int ret;

	if (cmd == FAULTY_REVOKE)
		return get_user(ret, (__s32 __user *)arg) ? -EFAULT :
							    faulty_revoke(ret);
	if (cmd != FAULTY_EXPORT)
		return -ENOTTY;
	if (copy_from_user(&request, (void __user *)arg, sizeof(request)))
		return -EFAULT;
	if (request.kind > FAULTY_REVOCABLE || !request.pages ||
	    request.pages > MAX_PAGES ||
	    (request.kind == FAULTY_LINEAR && request.pages != MAX_PAGES))
		return -EINVAL;

	dmabuf = faulty_make(request.kind, request.pages);
	if (IS_ERR(dmabuf))
		return PTR_ERR(dmabuf);
	ret = request.kind == FAULTY_LATE ? faulty_add_fence(dmabuf) : 0;
	if (!ret)
		ret = dma_buf_fd(dmabuf, O_CLOEXEC);
	if (ret < 0)
		dma_buf_put(dmabuf);

	return ret;
}

static const struct file_operations faulty_fops = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = faulty_ioctl,
};

static struct miscdevice faulty_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "faulty_exporter",
	.fops = &faulty_fops,
};

static int faulty_count_get(char *text, const struct kernel_param *kp)
{
	return sysfs_emit(text, "%d\n", atomic_read(kp->arg));
}

static int faulty_count_set(const char *text, const struct kernel_param *kp)
{
	return -EPERM;
}

static const struct kernel_param_ops faulty_count_ops = {
	.get = faulty_count_get,
	.set = faulty_count_set,
};

module_param_cb(live, &faulty_count_ops, &live, 0444);
MODULE_PARM_DESC(live, "Buffers alive now (read only)");
module_param_cb(unbalanced, &faulty_count_ops, &unbalanced, 0444);
MODULE_PARM_DESC(unbalanced,
		 "CPU accesses that did not end, or ended after the mapping, and writes to revoked memory (read only)");

module_misc_device(faulty_device);
MODULE_DESCRIPTION("Exporter of dma-bufs with faults to order, for tests");
MODULE_LICENSE("Dual BSD/GPL");
MODULE_IMPORT_NS(DMA_BUF);
