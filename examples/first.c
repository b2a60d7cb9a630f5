/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <pier/pier.h>

int main(void)
{
	static char text[] = "straight into place", result[sizeof(text)];
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_buffer *buffer;
	struct pier_mr *from, *to;
	struct pier_channel *here, *there;
	struct pier_endpoint end_here, end_there;
	struct pier_gather piece;
	struct pier_remote target;

	/* The first RDMA NIC of this machine; without one set PIER_DEVICE=soft0. */
	if (pier_device_open(NULL, &device) || pier_pd_alloc(device, &pd) ||
	    /* The bytes go from memory of our own to memory that is exported. */
	    pier_mr_reg(pd, text, sizeof(text), PIER_ACCESS_LOCAL_READ, &from) ||
	    pier_buffer_alloc("memfd", sizeof(text), &buffer) ||
	    pier_mr_reg_buffer(pd, buffer, 0, sizeof(text), PIER_ACCESS_SHARED,
			       PIER_POLICY_ANY, &to) ||
	    /* Two ends of a connection; they could be on two machines. */
	    pier_channel_create(pd, NULL, &here) ||
	    pier_channel_create(pd, NULL, &there) ||
	    pier_channel_endpoint(here, &end_here) ||
	    pier_channel_endpoint(there, &end_there) ||
	    pier_channel_connect(here, &end_there) ||
	    pier_channel_connect(there, &end_here) ||
	    /* One RDMA write: the other end does nothing, and has the bytes. */
	    pier_mr_gather(from, (uintptr_t)text, sizeof(text), &piece) ||
	    pier_mr_remote(to, &target) ||
	    pier_channel_write(here, &piece, 1, &target, PIER_TIMEOUT_DEFAULT) ||
	    pier_buffer_copy_from(buffer, 0, result, sizeof(result))) {
		fprintf(stderr, "%s\n", pier_error_message());
		return 1;
	}
	printf("%s, %s path: %s\n", pier_device_name(device),
	       pier_path_name(pier_mr_path(to)), result);
	/* Children first: closing what is still in use is -EBUSY. */
	return pier_channel_destroy(here) || pier_channel_destroy(there) ||
	       pier_mr_dereg(from) || pier_mr_dereg(to) || pier_buffer_free(buffer) ||
	       pier_pd_dealloc(pd) || pier_device_close(device) ||
	       strcmp(result, text) != 0;
}
