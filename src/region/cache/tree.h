/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_CACHE_TREE_H
#define PIER_REGION_CACHE_TREE_H

#include <stddef.h>
#include <stdint.h>

/*
 * Ranges [start, end), sorted by start, in a treap. The node is a member of the object,
 * so inserting and removing allocate nothing and are safe under any lock. Ranges may
 * overlap and be equal.
 */
struct pier_tree_node {
	uint64_t start, end;
	uint64_t reach; /* the largest end in the subtree */
	uint64_t priority;
	struct pier_tree_node *left, *right;
};

struct pier_tree {
	struct pier_tree_node *root;
};

/* The caller sets start and end, the tree all other members. */
void pier_tree_insert(struct pier_tree *tree, struct pier_tree_node *node);
/* The node is in the tree. */
void pier_tree_remove(struct pier_tree *tree, struct pier_tree_node *node);

/* The range that starts first among those that overlap [start, end), or NULL. */
struct pier_tree_node *pier_tree_overlap(const struct pier_tree *tree, uint64_t start,
					 uint64_t end);

/* The first range that starts at `start` or after it, or NULL. */
struct pier_tree_node *pier_tree_from(const struct pier_tree *tree, uint64_t start);

/*
 * The last range that starts at `start` or before, or NULL. If no range encloses
 * another, it is also the one that reaches farthest.
 */
static inline struct pier_tree_node *pier_tree_floor(const struct pier_tree *tree,
						     uint64_t start)
{
	struct pier_tree_node *node = tree->root, *found = NULL;

	while (node) {
		if (node->start <= start) {
			found = node;
			node = node->right;
		} else {
			node = node->left;
		}
	}
	return found;
}

#endif
