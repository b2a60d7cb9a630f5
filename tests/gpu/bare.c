/* SPDX-License-Identifier: BSD-3-Clause */
#include "../support/cmocka.h"

#include <stdio.h>
#include <unistd.h>

#include "bare.h"

struct bare_file bare_look_at(int fd)
{
	struct bare_file file = { .size = lseek(fd, 0, SEEK_END) };
	char path[32];
	ssize_t length;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	length = readlink(path, file.name, sizeof(file.name) - 1);
	file.name[length < 0 ? 0 : length] = '\0';
	lseek(fd, 0, SEEK_SET);
	return file;
}

static struct bare_answer ask_driver(uint64_t start, uint64_t end,
				     enum pier_mapping mapping)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t first = start & ~(page - 1), last = (end + page - 1) & ~(page - 1);
	struct bare_answer answer;
	int fd = -1;

	gpu_push();
	answer.error = gpu.vendor->export(first, last - first, mapping, &fd);
	gpu_pop();
	if (answer.error)
		return answer;
	answer.file = bare_look_at(fd);
	assert_int_equal(close(fd), 0);
	return answer;
}

/*
 * CUDA documents cuMemGetAddressRange() for memory of cuMemAlloc(), and the attributes
 * for all memory but that of cuMemMap(), whose segments they do not know.
 */
static unsigned int find_range(uint64_t *ret_first, size_t *ret_length, uint64_t address)
{
	unsigned int error = gpu.both.find_range(ret_first, ret_length, address);

	if (!error || gpu.vendor != &gpu_cuda)
		return error;
	error = gpu.call.cuPointerGetAttribute(
		ret_first, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address);
	return error ? error
		     : gpu.call.cuPointerGetAttribute(
			       ret_length, CU_POINTER_ATTRIBUTE_RANGE_SIZE, address);
}

/* Exports the allocation or the segment that contains the range. */
static struct bare_answer ask_around(uint64_t start, uint64_t end,
				     enum pier_mapping mapping)
{
	const unsigned int missing = 500; /* CUDA_ERROR_NOT_FOUND, hipErrorNotFound */
	unsigned int error;
	uint64_t first = 0;
	size_t length = 0;

	gpu_push();
	error = find_range(&first, &length, start);
	gpu_pop();
	if (!error && end - first > length)
		error = missing;
	if (error)
		return (struct bare_answer){ .error = error };
	return ask_driver(first, first + length, mapping);
}

struct bare_answers bare_ask(uint64_t address, size_t length, enum pier_mapping mapping)
{
	return (struct bare_answers){
		ask_driver(address, address + length, mapping),
		ask_around(address, address + length, mapping),
	};
}

bool bare_is_willing(const struct bare_answers *answers)
{
	return !answers->range.error || !answers->whole.error;
}

void bare_assert_unwilling(const struct bare_answers *answers)
{
	if (bare_is_willing(answers))
		fail_msg("the bare driver exports it, but pier does not: %s",
			 pier_error_message());
}
