/* SPDX-License-Identifier: BSD-3-Clause */
#include <string.h>
#include <sys/socket.h>

#include "link.h"
#include "core/wire.h"

void pier_soft_pack_header(const struct soft_header *header, uint8_t *ret_bytes)
{
	ret_bytes[0] = header->opcode;
	ret_bytes[1] = header->flags;
	ret_bytes[2] = header->syndrome;
	ret_bytes[3] = header->timer;
	pier_put_le32(ret_bytes + 4, header->msn);
	pier_put_le32(ret_bytes + 8, header->length);
	pier_put_le32(ret_bytes + 12, header->key);
	pier_put_le64(ret_bytes + 16, header->address);
	/* In network order already: copied unchanged. */
	memcpy(ret_bytes + 24, &header->immediate, sizeof(header->immediate));
	pier_put_le32(ret_bytes + 28, 0);
}

static bool is_opcode(uint8_t opcode)
{
	return (opcode >= SOFT_SEND && opcode <= SOFT_SEND_INV) ||
	       (opcode >= SOFT_ACK && opcode <= SOFT_ATOMIC_RESPONSE) ||
	       opcode == SOFT_SKIP;
}

bool pier_soft_is_atomic(uint8_t opcode)
{
	return opcode == SOFT_COMPARE_SWAP || opcode == SOFT_FETCH_ADD;
}

static bool is_length(uint8_t opcode, uint32_t length)
{
	if (opcode == SOFT_ACK || opcode == SOFT_NAK || opcode == SOFT_SKIP)
		return length == 0;
	if (pier_soft_is_atomic(opcode) || opcode == SOFT_ATOMIC_RESPONSE)
		return length == SOFT_WORD_SIZE;
	return length <= SOFT_MAX_MESSAGE;
}

static bool is_plausible(const struct soft_header *header)
{
	if (!is_opcode(header->opcode) || !is_length(header->opcode, header->length))
		return false;
	if (header->flags & ~(SOFT_FLAG_SOLICITED | SOFT_FLAG_COPIED))
		return false;
	if ((header->flags & SOFT_FLAG_COPIED) && header->opcode != SOFT_WRITE &&
	    header->opcode != SOFT_WRITE_IMM && header->opcode != SOFT_READ)
		return false;
	if (header->opcode != SOFT_NAK)
		return header->syndrome == 0 && header->timer == 0;
	return header->syndrome >= SOFT_NAK_RNR && header->syndrome <= SOFT_NAK_LAST &&
	       header->timer < 32;
}

bool pier_soft_unpack_header(const uint8_t *bytes, struct soft_header *ret_header)
{
	struct soft_header header = {
		.opcode = bytes[0],
		.flags = bytes[1],
		.syndrome = bytes[2],
		.timer = bytes[3],
		.msn = pier_get_le32(bytes + 4),
		.length = pier_get_le32(bytes + 8),
		.key = pier_get_le32(bytes + 12),
		.address = pier_get_le64(bytes + 16),
	};

	memcpy(&header.immediate, bytes + 24, sizeof(header.immediate));
	if (pier_get_le32(bytes + 28) != 0 || !is_plausible(&header))
		return false;
	*ret_header = header;
	return true;
}

uint32_t pier_soft_payload_length(const struct soft_header *header)
{
	if (header->opcode == SOFT_READ || (header->flags & SOFT_FLAG_COPIED))
		return 0;
	return pier_soft_is_atomic(header->opcode) ? SOFT_OPERANDS_SIZE : header->length;
}

static bool send_message(const struct soft_link *link, const uint8_t *bytes,
			 size_t length)
{
	return send(link->tx_fd, bytes, length, MSG_DONTWAIT | MSG_NOSIGNAL) ==
	       (ssize_t)length;
}

/* If the socket is full, the messages in it wake the peer. */
void pier_soft_send_wake(const struct soft_link *link)
{
	const uint8_t byte = SOFT_CONTROL_WAKE;

	send_message(link, &byte, 1);
}

bool pier_soft_send_grant_request(const struct soft_link *link, uint32_t key,
				  bool by_address)
{
	uint8_t bytes[SOFT_CONTROL_REQUEST_SIZE] = { SOFT_CONTROL_REQUEST, by_address };

	pier_put_le32(bytes + 4, key);
	return send_message(link, bytes, sizeof(bytes));
}

void pier_soft_send_serial(const struct soft_link *link, enum soft_control_type type,
			   uint32_t slot, uint32_t serial)
{
	uint8_t bytes[SOFT_CONTROL_SERIAL_SIZE] = { (uint8_t)type };

	pier_put_le32(bytes + 4, slot);
	pier_put_le32(bytes + 8, serial);
	send_message(link, bytes, sizeof(bytes));
}

static size_t pack_grant(const struct soft_grant_message *grant, uint8_t *ret_bytes)
{
	uint8_t *segment = ret_bytes + SOFT_CONTROL_GRANT_SIZE;
	size_t size = SOFT_CONTROL_GRANT_SIZE + grant->count * SOFT_CONTROL_SEGMENT_SIZE;

	memset(ret_bytes, 0, size);
	ret_bytes[0] = SOFT_CONTROL_GRANT;
	ret_bytes[1] = (uint8_t)grant->fd_count;
	ret_bytes[2] = grant->counted;
	ret_bytes[3] = grant->never;
	pier_put_le32(ret_bytes + 4, grant->key);
	pier_put_le32(ret_bytes + 8, grant->slot);
	pier_put_le32(ret_bytes + 12, grant->serial);
	pier_put_le32(ret_bytes + 16, grant->rights);
	pier_put_le32(ret_bytes + 20, grant->count);
	pier_put_le64(ret_bytes + 24, grant->iova);
	pier_put_le64(ret_bytes + 32, grant->shared_memory);
	for (uint32_t i = 0; i < grant->count;
	     i++, segment += SOFT_CONTROL_SEGMENT_SIZE) {
		pier_put_le64(segment, grant->segments[i].offset);
		pier_put_le64(segment + 8, grant->segments[i].length);
		pier_put_le32(segment + 16, grant->segments[i].fd);
	}
	return size;
}

bool pier_soft_send_with_fds(int fd, void *bytes, size_t length, const int *fds,
			     uint32_t count)
{
	_Alignas(struct cmsghdr) char
		control[CMSG_SPACE(sizeof(int) * SOFT_GRANT_SEGMENTS)] = { 0 };
	struct iovec part = { .iov_base = bytes, .iov_len = length };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
	struct cmsghdr *header = (struct cmsghdr *)control;

	if (count > 0) {
		header->cmsg_level = SOL_SOCKET;
		header->cmsg_type = SCM_RIGHTS;
		header->cmsg_len = CMSG_LEN(sizeof(int) * count);
		memcpy(CMSG_DATA(header), fds, sizeof(int) * count);
		message.msg_control = control;
		message.msg_controllen = CMSG_SPACE(sizeof(int) * count);
	}
	return sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)length;
}

/* A message fits one packet of a Unix socket, which is accepted as a whole or not at all.
 */
bool pier_soft_send_grant(const struct soft_link *link,
			  const struct soft_grant_message *grant, const int *fds)
{
	uint8_t bytes[SOFT_MAX_CONTROL];

	return pier_soft_send_with_fds(link->tx_fd, bytes, pack_grant(grant, bytes), fds,
				       grant->fd_count);
}

struct soft_frame *pier_soft_queue_frame(struct soft_link *link,
					 const struct soft_header *header)
{
	struct soft_frame *frame = pier_soft_frame_at(link, link->frame_count++);

	pier_soft_pack_header(header, frame->header);
	frame->source = SOFT_FROM_NOWHERE;
	frame->request = frame->stale = false;
	frame->length = 0;
	return frame;
}

void pier_soft_drop_queued_requests(struct soft_link *link)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < link->frame_count; i++) {
		const struct soft_frame *frame = pier_soft_frame_at(link, i);
		bool begun = i == 0 && link->sent_of_first > 0;

		if (frame->request && !begun)
			continue;
		*pier_soft_frame_at(link, kept++) = *frame;
	}
	link->frame_count = kept;
}
