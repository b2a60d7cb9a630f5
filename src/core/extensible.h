/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_CORE_EXTENSIBLE_H
#define PIER_CORE_EXTENSIBLE_H

#include <stddef.h>
#include <stdint.h>

/*
 * Read a struct of a caller that may have been built with an older or a newer
 * header; its first member is its size, a size_t. Copies what this library knows
 * over *ret_known, which holds the defaults, as copy_struct_from_user() does in
 * the kernel.
 *
 * what    for sentences: "channel attributes"
 * init    the function that sets the defaults, for sentences
 * first   the size in the first version of the header
 * known   the size in this library
 *
 * Errors: -EINVAL shorter than in any header, longer than a page (the caller has not
 * called `init`), or a member that only a newer library knows is neither zero nor unset
 * (PIER_UNSET).
 */
int pier_read_extensible(const char *what, const char *init, const void *given,
			 size_t first, size_t known, void *ret_known);

/*
 * The same for attributes that may be NULL: sets *ret_known to the defaults first.
 *
 * type  "channel_attr", for the name of the function that sets them
 */
#define PIER_READ_ATTR(what, type, given, first, ret_known)                          \
	(pier_##type##_init(ret_known),                                              \
	 (given) ? pier_read_extensible(what, "pier_" #type "_init()", given, first, \
					sizeof(*(ret_known)), ret_known)             \
		 : 0)

/* The size of a struct up to a member, such as the last one of its first version. */
#define PIER_SIZE_UP_TO(type, member) \
	(offsetof(struct pier_##type, member) + sizeof(((struct pier_##type *)0)->member))

/* A new member in the place of padding at the end would leave the size as it is. */
#define PIER_ASSERT_NO_PADDING(type, last_member)                                        \
	_Static_assert(sizeof(struct pier_##type) == PIER_SIZE_UP_TO(type, last_member), \
		       "no padding at the end")

/*
 * Write a struct that the library returns. The caller passes the size that the struct
 * has in its own header. Members that only a newer library knows are left out, and
 * members that only a newer header knows are set to 0.
 */
void pier_write_extensible(const void *known, size_t known_size, void *ret, size_t size);

/*
 * Return an array of such structs. Each element gets the caller's size.
 *
 * list      from malloc(3), or NULL with count 0. This function owns it: after an error
 *           it is freed
 * ret_list  a pointer to the caller's pointer
 *
 * Errors: -ENOMEM.
 */
int pier_write_list(void *list, size_t known_size, uint32_t count, void *ret_list,
		    uint32_t *ret_count, size_t size);

#endif
