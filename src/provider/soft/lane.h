/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_SOFT_LANE_H
#define PIER_SOFT_LANE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "limits.h"
#include "core/list.h"

/*
 * What a link has beside its socket when both ends are on one host: memory that they
 * share. Frames go through a ring of bytes each way, and an end that was given leave
 * copies straight into and out of the regions of the other. The socket is left with
 * waking an end that sleeps, with fds, and with telling that the peer is gone.
 *
 * The peer writes to all of this whenever and whatever it likes. Nothing is believed:
 * our own positions are kept elsewhere, the peer's are checked each time, and bytes of
 * a header are copied before they are looked at.
 */

struct soft_context;
struct soft_mr;
struct soft_qp;
struct soft_send;
struct soft_vector;

enum {
	SOFT_RING_SIZE = 256 * 1024,
	SOFT_RINGS_OFFSET = 4096,
	SOFT_SEGMENT_SIZE = SOFT_RINGS_OFFSET + 2 * SOFT_RING_SIZE
};

/* One direction. The producer is also who copies into the consumer's regions. */
struct soft_half {
	_Alignas(64) _Atomic uint64_t head; /* bytes ever put in */
	_Alignas(64) _Atomic uint64_t tail; /* bytes ever taken out */
	_Alignas(64) _Atomic uint32_t reader_sleeps;
	_Atomic uint32_t writer_sleeps;
	_Alignas(
		64) _Atomic uint32_t busy; /* the producer copies by this grant, plus 1 */
	_Alignas(64) _Atomic uint32_t valid[SOFT_MAX_GRANTS]; /* serials; 0: none */
};

struct soft_shared {
	struct soft_half halves[2];
};

_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "a lock would be one process' own");
_Static_assert(sizeof(struct soft_shared) <= SOFT_RINGS_OFFSET, "the rings lie behind");

/* segment.c: the memory, once in a process, also when both ends are in it. */
struct soft_segment {
	atomic_uint users;
	int fd;
	struct soft_shared *shared;
};

/* NULL: not to be had, which is no error. */
struct soft_segment *pier_soft_create_segment(void);
/* Of an fd that a peer made; borrows it. NULL: it does not serve. */
struct soft_segment *pier_soft_adopt_segment(int fd);
void pier_soft_drop_segment(struct soft_segment *segment);

/* A leave that we gave to the peer. */
struct soft_given {
	struct pier_list of_mr; /* in mr->given */
	struct soft_qp *qp;
	struct soft_mr *mr; /* NULL: free */
	uint32_t serial;
};

enum soft_leave {
	SOFT_LEAVE_NONE, /* the slot is free */
	SOFT_LEAVE_SEEN, /* used once: not worth asking for yet */
	SOFT_LEAVE_ASKED,
	SOFT_LEAVE_DENIED,
	SOFT_LEAVE_GIVEN
};

/* What we know about a key of the peer's. */
struct soft_held {
	enum soft_leave leave;
	uint32_t key;
	uint32_t slot, serial;	/* in `valid` */
	bool counted;		/* the peer wants to hear of each write */
	struct soft_mr *mapped; /* the peer's region, as it lies here */
	uint64_t bytes;		/* of it, which limits.c knows of, */
	uint32_t pieces;	/* and in how many mappings */
	uint64_t used;		/* the larger, the later */
	uint64_t denied_until;
};

enum {
	/* The longest word: a leave of this many pieces, each with its own fd. */
	SOFT_WORD_PIECES = 64,
	SOFT_MAX_WORD = 40 + 24 * SOFT_WORD_PIECES
};

struct soft_lane {
	struct soft_segment *segment;
	struct soft_half *out, *in; /* the same where a queue pair talks to itself */
	uint64_t put, taken;	    /* positions in them; only these are believed */

	struct soft_qp *qp;
	struct pier_list hot; /* in engine->hot while the engine looks at the rings */
	bool is_hot;
	uint64_t stirred; /* when something was last found here */
	uint64_t checked; /* when the peer was last seen to be there */
	bool shares_fds;  /* pier_soft_may_have_fds() when the link was made */

	uint8_t heard[SOFT_MAX_WORD];
	uint32_t heard_length;
	int fds[SOFT_WORD_PIECES]; /* that came with what was heard */
	int fd_count;

	struct soft_given given[SOFT_MAX_GRANTS];
	uint32_t next_serial;
	bool stubborn; /* the peer did not stop a copy: it is not waited for again */
	struct soft_held held[SOFT_MAX_GRANTS];
	uint32_t last_held; /* where the last key was */
	uint64_t uses;
};

/* lane.c; `side` 0 or 1, both ends differ. Consumes the segment; NULL: no memory. */
struct soft_lane *pier_soft_create_lane(struct soft_segment *segment, int side);
/* To itself: what is put in comes out. */
struct soft_lane *pier_soft_create_loop(struct soft_segment *segment);
/* Takes NULL. Leaves that were given must have been taken back. */
void pier_soft_free_lane(struct soft_lane *lane);

/* As sendmsg(2) and recvmsg(2); EPROTO: the peer's position cannot be. */
ssize_t pier_soft_lane_send(struct soft_qp *qp, struct soft_vector *vector);
ssize_t pier_soft_lane_receive(struct soft_qp *qp, struct soft_vector *vector);

/* hot.c; engine locked. */
void pier_soft_heat(struct soft_qp *qp);
void pier_soft_leave_hot(struct soft_qp *qp);
/* From now on the peer wakes us. False: something is there already. */
bool pier_soft_cool(struct soft_qp *qp);
bool pier_soft_cool_all(struct soft_context *context);
/* Puts in line whoever has something in a ring, or room that it waited for. */
void pier_soft_look(struct soft_context *context, uint64_t now);
/* For the end that set `sleeps`, if it still does. */
void pier_soft_wake(struct soft_qp *qp, _Atomic uint32_t *sleeps);

/* words.c: what is said over the socket. Engine locked. */
struct soft_leave_word {
	uint32_t key, slot, serial;
	uint64_t iova;
	bool counted;	/* the owner wants to hear of each write */
	bool never;	/* denied, and not to be asked for again */
	uint32_t count; /* of pieces; 0: denied */
	uint32_t fd_count;
	struct {
		uint64_t offset, length;
		uint32_t fd; /* index */
	} pieces[SOFT_WORD_PIECES];
};

void pier_soft_say_wake(struct soft_qp *qp);
bool pier_soft_say_ask(struct soft_qp *qp, uint32_t key);
bool pier_soft_say_leave(struct soft_qp *qp, const struct soft_leave_word *word,
			 const int *fds);
/* Of a leave that was given, and that the one or the other wants no more. */
void pier_soft_say_dropped(struct soft_qp *qp, uint32_t slot, uint32_t serial);
void pier_soft_say_revoked(struct soft_qp *qp, uint32_t slot, uint32_t serial);
/* Takes in what there is; false: the peer talks nonsense. */
bool pier_soft_hear(struct soft_qp *qp);
/* Whether the peer has hung up, or died. */
bool pier_soft_is_gone(const struct soft_qp *qp);

/* grant.c: as target. Engine locked. */
void pier_soft_answer_ask(struct soft_qp *qp, uint32_t key);
/* The peer has dropped it. False: it says so in the middle of a copy, which is a lie. */
bool pier_soft_forget_given(struct soft_qp *qp, uint32_t slot, uint32_t serial);
/*
 * No byte is touched by the peer any more when these return; a link on which it would
 * not stop is broken then.
 */
void pier_soft_revoke_region(struct soft_mr *mr);
void pier_soft_revoke_link(struct soft_qp *qp);

/* direct.c: as initiator. Engine locked. */
enum soft_placing {
	SOFT_PLACE_NOT,	   /* by the ring */
	SOFT_PLACE_LATER,  /* what was sent before has to be done, or the turn is over */
	SOFT_PLACE_DONE,   /* all of it is at its place: the header says so */
	SOFT_PLACE_SILENT, /* and the peer need not hear of it */
	SOFT_PLACE_FAILED, /* our own memory has vanished */
};

enum soft_placing pier_soft_place(struct soft_qp *qp, struct soft_send *send);

/* held.c: the leaves of an initiator. Engine locked. */
/* The leave for a request; NULL: there is none. Asks for one where that may help. */
struct soft_held *pier_soft_find_leave(struct soft_qp *qp, const struct soft_send *send);
/* `fds` are borrowed. False: nobody asked for that leave. */
bool pier_soft_take_leave(struct soft_qp *qp, const struct soft_leave_word *word,
			  const int *fds);
/* It cannot be used: the peer set O_APPEND on its fd, for example. */
void pier_soft_reject_leave(struct soft_qp *qp, struct soft_held *held);
void pier_soft_forget_held(struct soft_qp *qp, uint32_t slot, uint32_t serial);
void pier_soft_release_held(struct soft_held *held);
void pier_soft_drop_held(struct soft_lane *lane);

#endif
