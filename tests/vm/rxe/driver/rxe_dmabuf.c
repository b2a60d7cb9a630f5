// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/*
 * Memory regions on dma-bufs.
 *
 * rxe moves its bytes with the CPU. There is no struct device that could be
 * attached to a dma-buf, and the pages behind an attachment's sg_table are
 * none of an importer's business. CPU access to a dma-buf from the kernel has
 * an interface of its own, which is used here: dma_buf_vmap(), bracketed by
 * dma_buf_begin_cpu_access() and dma_buf_end_cpu_access(). While it is mapped
 * the exporter does not move the buffer, and the pages of the mapping can be
 * kept in the region's page table, where the rest of the driver finds them as
 * it finds those of any region.
 *
 * An exporter that can move its buffers calls move_notify nevertheless when it
 * takes the memory away for good, as vfio-pci does when its device is reset.
 * Such a buffer is attached as well, without a mapping for DMA, and a region on
 * it ends with the first call, as one of ib_umem_dmabuf_revoke() does: its keys
 * are refused, and no access is under way any more when the call returns. The
 * region itself stays until it is deregistered.
 *
 * The driver accesses a region at any time between registration and
 * deregistration, and mostly from where it cannot sleep. One bracket therefore
 * spans the life of the region. That is enough where the CPU's caches are
 * coherent with the devices that share the buffer.
 */

#include <linux/dma-buf.h>
#include <linux/dma-resv.h>
#include <linux/iosys-map.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/overflow.h>
#include <linux/vmalloc.h>

#include "rxe.h"
#include "rxe_dmabuf.h"

MODULE_IMPORT_NS(DMA_BUF);

/* What uverbs lets through for a dma-buf, as far as rxe knows it. */
#define RXE_ACCESS_SUPPORTED_DMABUF_MR \
	(RXE_ACCESS_REMOTE | IB_ACCESS_LOCAL_WRITE | IB_ACCESS_OPTIONAL)

/**
 * struct rxe_mr_dmabuf - what a region holds of a dma-buf
 * @dmabuf: the dma-buf; this reference also keeps the exporter's module
 * @mr: the region
 * @attach: by which a dynamic exporter revokes the memory, or NULL
 * @revoked: it has done so; under the reservation lock of the dma-buf
 * @map: the mapping of the whole dma-buf
 * @dir: direction of the CPU access that has begun
 */
struct rxe_mr_dmabuf {
	struct dma_buf *dmabuf;
	struct rxe_mr *mr;
	struct dma_buf_attachment *attach;
	bool revoked;
	struct iosys_map map;
	enum dma_data_direction dir;
};

static atomic_t dmabuf_registered = ATOMIC_INIT(0);
static atomic_t dmabuf_live = ATOMIC_INIT(0);

/*
 * The checks, their order and their errors are those of
 * ib_umem_dmabuf_get(), which drivers with a DMA device use. Like there, the
 * mode in which @fd was opened is not looked at.
 */
static struct dma_buf *rxe_dmabuf_get(u64 offset, u64 length, int fd)
{
	struct dma_buf *dmabuf;
	u64 end;

	if (check_add_overflow(offset, length, &end))
		return ERR_PTR(-EINVAL);

	dmabuf = dma_buf_get(fd);
	if (IS_ERR(dmabuf))
		return dmabuf;

	if (dmabuf->size < end || !length) {
		dma_buf_put(dmabuf);
		return ERR_PTR(-EINVAL);
	}

	return dmabuf;
}

/*
 * Waits for the fences of the dma-buf, those of DMA_RESV_USAGE_KERNEL among
 * them. dma_buf_begin_cpu_access() would do that by itself, but after the
 * exporter's begin_cpu_access, and does not tell which of the two has failed:
 * after a signal nobody knew whether there is an access to be ended.
 */
static int rxe_dmabuf_wait(struct rxe_mr_dmabuf *d)
{
	enum dma_resv_usage usage;
	long ret;

	usage = dma_resv_usage_rw(d->dir == DMA_BIDIRECTIONAL);
	ret = dma_resv_wait_timeout(d->dmabuf->resv, usage, true,
				    MAX_SCHEDULE_TIMEOUT);

	return ret < 0 ? ret : 0;
}

static int rxe_dmabuf_begin(struct rxe_mr_dmabuf *d)
{
	int err;

	/* the core reports this as -EINVAL */
	if (!d->dmabuf->ops->vmap)
		return -EOPNOTSUPP;

	err = dma_buf_vmap_unlocked(d->dmabuf, &d->map);
	if (err)
		return err;

	/* rxe reads and writes struct pages, device memory has none */
	if (d->map.is_iomem || offset_in_page(d->map.vaddr)) {
		err = -EOPNOTSUPP;
		goto err_vunmap;
	}

	/* after the vmap, which may have started a move of the buffer */
	err = rxe_dmabuf_wait(d);
	if (err)
		goto err_vunmap;

	err = dma_buf_begin_cpu_access(d->dmabuf, d->dir);
	if (err)
		goto err_vunmap;

	return 0;

err_vunmap:
	dma_buf_vunmap_unlocked(d->dmabuf, &d->map);
	return err;
}

static void rxe_dmabuf_end(struct rxe_mr_dmabuf *d)
{
	dma_buf_end_cpu_access(d->dmabuf, d->dir);
	dma_buf_vunmap_unlocked(d->dmabuf, &d->map);
}

/*
 * The data path reads the state and copies within one section of RCU, so that
 * nobody touches the pages any more after the grace period.
 */
static void rxe_dmabuf_move_notify(struct dma_buf_attachment *attach)
{
	struct rxe_mr_dmabuf *d = attach->importer_priv;

	dma_resv_assert_held(attach->dmabuf->resv);
	d->revoked = true;
	WRITE_ONCE(d->mr->state, RXE_MR_STATE_INVALID);
	synchronize_rcu();
}

static const struct dma_buf_attach_ops rxe_dmabuf_attach_ops = {
	.move_notify = rxe_dmabuf_move_notify,
};

/*
 * Only dynamic exporters revoke, and only theirs is not mapped for DMA by the
 * mere attachment.
 */
static int rxe_dmabuf_attach(struct rxe_mr_dmabuf *d)
{
	struct dma_buf_attachment *attach;

	if (!dma_buf_is_dynamic(d->dmabuf))
		return 0;

	attach = dma_buf_dynamic_attach(d->dmabuf, &d->mr->ibmr.device->dev,
					&rxe_dmabuf_attach_ops, d);
	if (IS_ERR(attach))
		return PTR_ERR(attach);

	d->attach = attach;
	return 0;
}

static void rxe_dmabuf_detach(struct rxe_mr_dmabuf *d)
{
	if (d->attach)
		dma_buf_detach(d->dmabuf, d->attach);
}

static void rxe_dmabuf_make_valid(struct rxe_mr_dmabuf *d)
{
	dma_resv_lock(d->dmabuf->resv, NULL);
	if (!d->revoked)
		WRITE_ONCE(d->mr->state, RXE_MR_STATE_VALID);
	dma_resv_unlock(d->dmabuf->resv);
}

static struct page *rxe_dmabuf_page(const void *vaddr)
{
	struct page *page = NULL;

	if (is_vmalloc_addr(vaddr))
		page = vmalloc_to_page(vaddr);
	else if (virt_addr_valid(vaddr))
		page = virt_to_page(vaddr);

	/* the mapping may be of memory without a struct page */
	if (!page || !pfn_valid(page_to_pfn(page)))
		return NULL;

	return page;
}

static int rxe_dmabuf_fill_pages(struct rxe_mr *mr, const void *vaddr,
				 u32 npages, struct page *prev)
{
	struct page *page;
	u32 i;

	for (i = 0; i < npages; i++) {
		page = rxe_dmabuf_page(vaddr + i * PAGE_SIZE);
		if (!page)
			return -EOPNOTSUPP;

		/*
		 * udmabuf of v6.12 maps the first page of a large folio in
		 * place of each of its pages. That is not what the dma-buf
		 * contains.
		 */
		if (page == prev && PageCompound(page))
			return -EOPNOTSUPP;

		mr->page_info[i].page = page;
		prev = page;
		cond_resched();
	}

	return 0;
}

/*
 * The table holds the pages of [offset, offset + length) and no others. uverbs
 * has seen to it that @offset and the iova agree modulo PAGE_SIZE, so that the
 * page of the iova is the first in the table.
 */
static int rxe_dmabuf_init_pages(struct rxe_mr *mr, u64 offset, u64 length)
{
	u64 first = offset >> PAGE_SHIFT;
	u64 npages = ((offset + length - 1) >> PAGE_SHIFT) - first + 1;
	const void *vaddr = mr->dmabuf->map.vaddr + (first << PAGE_SHIFT);
	struct page *prev;
	int err;

	/* the driver's index into page_info is an int */
	if (npages > INT_MAX)
		return -EINVAL;

	mr->page_info = kvcalloc(npages, sizeof(*mr->page_info),
				 GFP_KERNEL | __GFP_NOWARN);
	if (!mr->page_info)
		return -ENOMEM;

	prev = first ? rxe_dmabuf_page(vaddr - PAGE_SIZE) : NULL;
	err = rxe_dmabuf_fill_pages(mr, vaddr, npages, prev);
	if (err) {
		kvfree(mr->page_info);
		mr->page_info = NULL;
		return err;
	}

	mr->num_buf = npages;
	mr->max_allowed_buf = npages;
	mr->nbuf = npages;

	return 0;
}

static int rxe_mr_init_dmabuf(struct rxe_mr *mr, u64 offset, u64 length,
			      u64 iova, int fd, int access)
{
	struct rxe_mr_dmabuf *d;
	u64 last;
	int err;

	rxe_mr_init(access, mr);

	d = kzalloc(sizeof(*d), GFP_KERNEL);
	if (!d)
		return -ENOMEM;

	d->mr = mr;
	d->dir = ib_access_writable(access) ? DMA_BIDIRECTIONAL :
					      DMA_FROM_DEVICE;

	d->dmabuf = rxe_dmabuf_get(offset, length, fd);
	if (IS_ERR(d->dmabuf)) {
		err = PTR_ERR(d->dmabuf);
		goto err_free;
	}

	/*
	 * An address space that wraps cannot be walked page by page. The same
	 * limit as in ib_umem_find_best_pgsz().
	 */
	if (check_add_overflow(iova, length - 1, &last)) {
		err = -EINVAL;
		goto err_put;
	}

	err = rxe_dmabuf_attach(d);
	if (err)
		goto err_put;

	err = rxe_dmabuf_begin(d);
	if (err)
		goto err_detach;

	mr->dmabuf = d;
	err = rxe_dmabuf_init_pages(mr, offset, length);
	if (err)
		goto err_end;

	mr->ibmr.type = IB_MR_TYPE_USER;
	mr->ibmr.iova = iova;
	mr->ibmr.length = length;
	rxe_dmabuf_make_valid(d);

	atomic_inc(&dmabuf_live);
	atomic_inc(&dmabuf_registered);

	return 0;

err_end:
	mr->dmabuf = NULL;
	rxe_dmabuf_end(d);
err_detach:
	rxe_dmabuf_detach(d);
err_put:
	dma_buf_put(d->dmabuf);
err_free:
	kfree(d);
	return err;
}

/**
 * rxe_dmabuf_release - undo what rxe_reg_user_mr_dmabuf() did for a region
 * @mr: a region of any kind that nobody accesses any more
 *
 * Does nothing for a region that is not on a dma-buf.
 *
 * Context: may sleep; takes the reservation lock of the dma-buf.
 */
void rxe_dmabuf_release(struct rxe_mr *mr)
{
	struct rxe_mr_dmabuf *d = mr->dmabuf;

	if (!d)
		return;

	kvfree(mr->page_info);
	mr->page_info = NULL;
	mr->dmabuf = NULL;

	rxe_dmabuf_end(d);
	rxe_dmabuf_detach(d);
	dma_buf_put(d->dmabuf);
	kfree(d);

	atomic_dec(&dmabuf_live);
}

/**
 * rxe_reg_user_mr_dmabuf - register a part of a dma-buf
 * @ibpd: protection domain
 * @offset: start of the part, in bytes from the start of the dma-buf
 * @length: length of the part in bytes
 * @iova: address of its first byte in work requests; agrees with @offset
 *	modulo PAGE_SIZE
 * @fd: file descriptor of the dma-buf, not needed any more on return
 * @access: IB_ACCESS_xxx flags
 * @attrs: attributes of the uverbs call, not used
 *
 * Return: the region, or an ERR_PTR:
 *
 * * -EOPNOTSUPP: @access has a flag that rxe does not support, or the exporter
 *   cannot map the buffer for the CPU, or maps something other than pages
 * * -EINVAL: @length is 0, @offset + @length overflows or lies past the end of
 *   the dma-buf, @iova + @length wraps, there are too many pages, or @fd is
 *   not a dma-buf
 * * -EBADF: @fd is not open
 * * -ENODEV: the exporter has revoked the memory
 * * -ENOMEM, -ERESTARTSYS, or what the exporter's vmap or begin_cpu_access says
 */
struct ib_mr *rxe_reg_user_mr_dmabuf(struct ib_pd *ibpd, u64 offset,
				     u64 length, u64 iova, int fd, int access,
				     struct uverbs_attr_bundle *attrs)
{
	struct rxe_dev *rxe = to_rdev(ibpd->device);
	struct rxe_pd *pd = to_rpd(ibpd);
	struct rxe_mr *mr;
	int err, cleanup_err;

	if (access & ~RXE_ACCESS_SUPPORTED_DMABUF_MR) {
		rxe_dbg_pd(pd, "access = %#x not supported (%#x)\n", access,
			   RXE_ACCESS_SUPPORTED_DMABUF_MR);
		return ERR_PTR(-EOPNOTSUPP);
	}

	mr = kzalloc(sizeof(*mr), GFP_KERNEL);
	if (!mr)
		return ERR_PTR(-ENOMEM);

	err = rxe_add_to_pool(&rxe->mr_pool, mr);
	if (err) {
		rxe_dbg_pd(pd, "unable to create mr\n");
		goto err_free;
	}

	rxe_get(pd);
	mr->ibmr.pd = ibpd;
	mr->ibmr.device = ibpd->device;

	err = rxe_mr_init_dmabuf(mr, offset, length, iova, fd, access);
	if (err) {
		rxe_dbg_mr(mr, "init_dmabuf failed, err = %d\n", err);
		goto err_cleanup;
	}

	rxe_finalize(mr);
	return &mr->ibmr;

err_cleanup:
	cleanup_err = rxe_cleanup(mr);
	if (cleanup_err)
		rxe_err_mr(mr, "cleanup failed, err = %d\n", cleanup_err);
err_free:
	kfree(mr);
	return ERR_PTR(err);
}

/* For tests, which cannot see the regions of other processes. */
static int rxe_dmabuf_count_get(char *buffer, const struct kernel_param *kp)
{
	return sysfs_emit(buffer, "%d\n", atomic_read(kp->arg));
}

/* load_module() calls set without asking whether there is one */
static int rxe_dmabuf_count_set(const char *val, const struct kernel_param *kp)
{
	return -EPERM;
}

static const struct kernel_param_ops rxe_dmabuf_count_ops = {
	.get = rxe_dmabuf_count_get,
	.set = rxe_dmabuf_count_set,
};

module_param_cb(dmabuf_registered, &rxe_dmabuf_count_ops, &dmabuf_registered,
		0444);
MODULE_PARM_DESC(dmabuf_registered,
		 "Regions registered on dma-bufs since the module was loaded (read only)");
module_param_cb(dmabuf_live, &rxe_dmabuf_count_ops, &dmabuf_live, 0444);
MODULE_PARM_DESC(dmabuf_live, "Regions on dma-bufs alive now (read only)");
