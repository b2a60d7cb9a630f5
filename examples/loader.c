/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A data loader. It reads the samples of a server process in random order, in batches,
 * into a ring of slots: loader [SEED]. Without an RDMA NIC run it with PIER_DEVICE=soft0.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <pier/pier.h>

enum {
	SAMPLES = 2048,
	BATCH = 64,
	WORDS = 2048
};
typedef uint32_t sample[WORDS];

struct end {
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_channel *channel;
};

static int open_end(struct end *end, int socket)
{
	struct pier_channel_attr attr;

	pier_channel_attr_init(&attr);
	attr.max_send_wr = 2 * BATCH;
	return pier_device_open(NULL, &end->device) ||
	       pier_pd_alloc(end->device, &end->pd) ||
	       pier_channel_create(end->pd, &attr, &end->channel) ||
	       pier_channel_handshake(end->channel, socket, socket, PIER_TIMEOUT_DEFAULT);
}

/* Make the samples, describe their memory to the client, and sleep until it is gone. */
static int serve_samples(int socket)
{
	struct pier_buffer *buffer;
	struct pier_remote remote;
	struct pier_mr *mr;
	struct end end;
	void *bytes;

	if (open_end(&end, socket) ||
	    pier_buffer_alloc("memfd", SAMPLES * sizeof(sample), &buffer) ||
	    pier_buffer_map(buffer, &bytes) ||
	    pier_mr_reg_buffer(end.pd, buffer, 0, SAMPLES * sizeof(sample),
			       PIER_ACCESS_SHARED, PIER_POLICY_ANY, &mr) ||
	    pier_mr_remote(mr, &remote))
		return 1;
	for (uint32_t i = 0; i < SAMPLES * WORDS; i++)
		((uint32_t *)bytes)[i] = i;
	/* The processes are of one host; pier_remote_pack() is for others. */
	return write(socket, &remote, sizeof(remote)) != sizeof(remote) ||
	       read(socket, &remote, 1) != 0;
}

/* The reads of a batch go out under two doorbells. */
static int begin_batch(struct pier_ring *ring, const struct pier_ring_source *source,
		       const uint32_t *samples)
{
	struct pier_ring_read reads[BATCH];

	for (uint32_t i = 0; i < BATCH; i++)
		reads[i] = (struct pier_ring_read){
			.offset = i * sizeof(sample),
			.remote_offset = samples[i] * sizeof(sample),
			.length = sizeof(sample),
		};
	return pier_ring_fill(ring, source, 1, reads, BATCH, NULL);
}

static int load_epoch(struct pier_ring *ring, const struct pier_ring_source *source)
{
	uint32_t order[SAMPLES], begun = 0, right = 0;

	for (uint32_t i = 0; i < SAMPLES; i++) { /* a random order of all samples */
		uint32_t j = (uint32_t)random() % (i + 1);

		order[i] = order[j];
		order[j] = i;
	}
	for (uint32_t done = 0; done < SAMPLES; done += BATCH) {
		struct pier_ring_slot slot;

		while (begun < SAMPLES && !begin_batch(ring, source, &order[begun]))
			begun += BATCH;
		if (pier_ring_next(ring, PIER_TIMEOUT_DEFAULT, &slot) != 1)
			return 1;
		/* Training would happen here, while the other slots are filled. */
		for (uint32_t i = 0; i < BATCH * WORDS; i++)
			right += ((uint32_t *)slot.pointer)[i] ==
				 order[done + i / WORDS] * WORDS + i % WORDS;
		pier_ring_release(ring, &slot);
	}
	printf("%u of %d words are right\n", right, SAMPLES * WORDS);
	return right != SAMPLES * WORDS;
}

static int load_samples(int socket)
{
	struct pier_ring_source source;
	struct pier_ring_attr attr;
	struct pier_remote remote;
	struct pier_ring *ring;
	struct end end;

	pier_ring_attr_init(&attr);
	attr.spec = "memfd"; /* or "cuda:0" */
	attr.slot_size = BATCH * sizeof(sample);
	if (open_end(&end, socket) || pier_ring_create(end.pd, &attr, &ring) ||
	    recv(socket, &remote, sizeof(remote), MSG_WAITALL) != sizeof(remote))
		return 1;
	source = (struct pier_ring_source){ end.channel, &remote, 1 };
	return load_epoch(ring, &source) || pier_ring_destroy(ring) ||
	       pier_channel_destroy(end.channel) || pier_pd_dealloc(end.pd) ||
	       pier_device_close(end.device);
}

int main(int argc, char **argv)
{
	int sockets[2], server, failed;

	srandom(argc > 1 ? (unsigned int)atoi(argv[1]) : 1);
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets))
		return 1;
	server = fork() == 0;
	close(sockets[!server]);
	failed = server ? serve_samples(sockets[1]) : load_samples(sockets[0]);
	if (failed)
		fprintf(stderr, "%s\n", pier_error_message());
	close(sockets[server]);
	wait(NULL); /* in the server there is nothing to wait for */
	return failed;
}
