/* SPDX-License-Identifier: BSD-3-Clause */
/* Uses every struct of the backend "outside". Prints the detail of its probe(). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pier/pier.h>

#define CHECK(condition)                                                           \
	do {                                                                       \
		if (!(condition)) {                                                \
			fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, \
				pier_error_message());                             \
			exit(1);                                                   \
		}                                                                  \
	} while (0)

static struct pier_buffer *buffer;

static void print_detail(const char *name)
{
	struct pier_backend_info *list = NULL;
	uint32_t count = 0;

	CHECK(pier_backend_list(&list, &count, sizeof(*list)) == 0);
	for (size_t i = 0; i < count; i++) {
		if (strcmp(list[i].name, name) == 0)
			printf("%s: %s\n", name, list[i].detail);
	}
	free(list);
}

static void use_buffer(void)
{
	struct pier_buffer *inside = NULL;
	struct pier_copy *copy = NULL;
	struct pier_buffer_info info;
	struct pier_dmabuf dmabuf;
	char byte = 0;
	void *mapped;

	CHECK(pier_buffer_copy_to(buffer, 999, "x", 1) == 0);
	CHECK(pier_buffer_copy_from(buffer, 999, &byte, 1) == 0 && byte == 'x');
	CHECK(pier_buffer_copy_start_to(buffer, 5, "y", 1, NULL, &copy) == 0);
	CHECK(pier_copy_wait(copy, 0) == 1);
	CHECK(pier_copy_free(copy) == 0);
	CHECK(pier_buffer_query(buffer, &info, sizeof(info)) == 0);
	CHECK(strcmp(info.kind, "from elsewhere") == 0);
	CHECK(pier_dmabuf_export(buffer, 1, 10, PIER_MAPPING_AUTO, &dmabuf) == 0 &&
	      dmabuf.offset == 1);
	pier_dmabuf_close(&dmabuf);
	CHECK(pier_buffer_map(buffer, &mapped) == 0);
	CHECK(pier_buffer_wrap((char *)mapped + 1, 10, &inside) == 0);
	CHECK(pier_buffer_query(inside, &info, sizeof(info)) == 0);
	CHECK(strcmp(info.backend, "outside") == 0);
}

static void use_region(void)
{
	struct pier_device *device = NULL;
	struct pier_mr *mr = NULL;
	struct pier_pd *pd = NULL;

	CHECK(pier_device_open("soft0", &device) == 0);
	CHECK(pier_pd_alloc(device, &pd) == 0);
	CHECK(pier_mr_reg_buffer(pd, buffer, 5, 900, PIER_ACCESS_SHARED,
				 PIER_POLICY_DIRECT, &mr) == 0);
	CHECK(pier_mr_path(mr) == PIER_PATH_DMABUF);
	CHECK(pier_mr_sync_for_device(mr, 0, 900) == 0);
	CHECK(pier_mr_dereg(mr) == 0);
	CHECK(pier_pd_dealloc(pd) == 0);
	CHECK(pier_device_close(device) == 0);
}

int main(int count, char **names)
{
	struct pier_memory_unit *units = NULL;
	uint32_t unit_count = 0;

	print_detail(count > 1 ? names[1] : "outside");
	if (count > 1)
		return 0;
	CHECK(pier_buffer_alloc("outside", 1000, &buffer) == 0);
	use_buffer();
	use_region();
	CHECK(pier_memory_unit_list(&units, &unit_count, sizeof(*units)) == 0);
	CHECK(strcmp(units[unit_count - 1].name, "outside unit") == 0);
	free(units);
	CHECK(pier_buffer_alloc("outside:1", 1, &buffer) < 0);
	printf("%s\n", pier_error_message());
	return 0;
}
