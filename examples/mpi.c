/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A job under a launcher: MPI starts the processes and exchanges their endpoints
 * once; pier moves the data.
 *
 *	mpirun -n 4 example_mpi           each rank receives a block from every other rank
 *	mpirun --enable-recovery -n 4 example_mpi --die 2
 *	                                  rank 2 kills itself; the others report it
 *
 * Without an RDMA NIC set PIER_DEVICE=soft0 (mpirun -x); ranks on several hosts then
 * need PIER_SOFT_ADDRESS=:: too.
 */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <mpi.h>
#include <pier/pier.h>

enum {
	BLOCK = 1 << 20, /* bytes of each rank */
	TIMEOUT_MS = 20000,
};

struct job {
	int rank, size;
	struct pier_device *device;
	struct pier_pd *pd;
	struct pier_buffer *buffer; /* one block per rank; its own is the source */
	struct pier_mr *mr;
	struct pier_group *group;
	unsigned char *bytes;
	struct pier_remote *remotes; /* the buffer of each rank */
};

/* Byte i of a rank's block. */
static unsigned char pattern_byte(int rank, size_t i)
{
	return (unsigned char)((i * 31 + (i >> 8) + (size_t)rank * 101) & 0xff);
}

static int open_memory(struct job *job)
{
	size_t length = (size_t)job->size * BLOCK;
	void *bytes;

	if (pier_device_open(NULL, &job->device) ||
	    pier_pd_alloc(job->device, &job->pd) ||
	    pier_buffer_alloc("memfd", length, &job->buffer) ||
	    pier_buffer_map(job->buffer, &bytes) ||
	    pier_mr_reg_buffer(job->pd, job->buffer, 0, length, PIER_ACCESS_SHARED,
			       PIER_POLICY_ANY, &job->mr))
		return -1;
	job->bytes = bytes;
	memset(job->bytes, 0, length);
	for (size_t i = 0; i < BLOCK; i++)
		job->bytes[(size_t)job->rank * BLOCK + i] = pattern_byte(job->rank, i);
	return 0;
}

/* Only this step needs the launcher. */
static int connect_group(struct job *job)
{
	size_t size = (size_t)job->size * PIER_GROUP_BLOB_SIZE;
	uint8_t *mine = malloc(size), *theirs = malloc(size);
	int error = -1;

	if (mine && theirs &&
	    !pier_group_create(job->pd, (uint32_t)job->rank, (uint32_t)job->size, NULL,
			       &job->group) &&
	    !pier_group_endpoints(job->group, mine, size) &&
	    !MPI_Alltoall(mine, PIER_GROUP_BLOB_SIZE, MPI_BYTE, theirs,
			  PIER_GROUP_BLOB_SIZE, MPI_BYTE, MPI_COMM_WORLD))
		error = pier_group_connect(job->group, theirs, size, TIMEOUT_MS);
	free(mine);
	free(theirs);
	return error;
}

/* Exchange the descriptions of all buffers. */
static int learn_remotes(struct job *job)
{
	uint8_t mine[PIER_REMOTE_WIRE_SIZE];
	uint8_t *all = malloc((size_t)job->size * sizeof(mine));
	struct pier_remote remote;
	int error = -1;

	job->remotes = calloc((size_t)job->size, sizeof(remote));
	if (all && job->remotes && !pier_mr_remote(job->mr, &remote)) {
		pier_remote_pack(&remote, mine);
		error = MPI_Allgather(mine, sizeof(mine), MPI_BYTE, all, sizeof(mine),
				      MPI_BYTE, MPI_COMM_WORLD);
	}
	for (int rank = 0; rank < job->size && !error; rank++)
		error = pier_remote_unpack(all + (size_t)rank * sizeof(mine),
					   sizeof(mine), &job->remotes[rank]);
	free(all);
	return error;
}

/* Write this rank's block into every other rank's buffer, all at the same time. */
static int send_to_all(struct job *job)
{
	size_t offset = (size_t)job->rank * BLOCK;
	struct pier_group_request *requests = calloc((size_t)job->size,
						     sizeof(*requests));
	struct pier_remote *places = calloc((size_t)job->size, sizeof(*places));
	struct pier_gather block;
	uint32_t count = 0;
	int error = requests && places ? 0 : -1;

	if (!error)
		error = pier_mr_gather(job->mr, pier_mr_iova(job->mr) + offset, BLOCK,
				       &block);
	for (int rank = 0; rank < job->size && !error; rank++) {
		if (rank == job->rank)
			continue;
		error = pier_remote_sub(&job->remotes[rank], offset, BLOCK,
					&places[count]);
		requests[count].rank = (uint32_t)rank;
		requests[count].request.opcode = PIER_OP_WRITE;
		requests[count].request.gather = &block;
		requests[count].request.num_sge = 1;
		requests[count].request.remote = &places[count];
		count++;
	}
	if (!error)
		error = pier_group_exchange(job->group, requests, count, TIMEOUT_MS,
					    NULL);
	free(places);
	free(requests);
	return error;
}

static int check_blocks(const struct job *job)
{
	for (int rank = 0; rank < job->size; rank++) {
		for (size_t i = 0; i < BLOCK; i++) {
			if (job->bytes[(size_t)rank * BLOCK + i] == pattern_byte(rank, i))
				continue;
			printf("rank %d: byte %zu of rank %d's block is wrong\n",
			       job->rank, i, rank);
			return -1;
		}
	}
	printf("rank %d: %d blocks of %d bytes are right\n", job->rank, job->size, BLOCK);
	return 0;
}

static int close_job(struct job *job)
{
	free(job->remotes);
	return pier_group_destroy(job->group) || pier_mr_dereg(job->mr) ||
	       pier_buffer_free(job->buffer) || pier_pd_dealloc(job->pd) ||
	       pier_device_close(job->device);
}

/* MPI_Finalize() would wait for the dead rank, so exit without it. */
static void exit_with_failure(const struct job *job, const char *step)
{
	printf("rank %d: %s: %s\n", job->rank, step, pier_error_message());
	fflush(stdout);
	_exit(1);
}

int main(int argc, char **argv)
{
	struct job job = { 0 };
	int dies = -1;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &job.rank);
	MPI_Comm_size(MPI_COMM_WORLD, &job.size);
	if (argc == 3 && strcmp(argv[1], "--die") == 0)
		dies = atoi(argv[2]);
	if (open_memory(&job) || connect_group(&job) || learn_remotes(&job))
		exit_with_failure(&job, "beginning");
	if (job.rank == dies)
		raise(SIGKILL);
	if (dies < 0 && send_to_all(&job))
		exit_with_failure(&job, "writing to all");
	/* A rank enters the barrier after its writes, so all of them have finished. */
	if (pier_group_barrier(job.group, TIMEOUT_MS))
		exit_with_failure(&job, "barrier");
	if (check_blocks(&job) || close_job(&job))
		exit_with_failure(&job, "ending");
	MPI_Finalize();
	return 0;
}
