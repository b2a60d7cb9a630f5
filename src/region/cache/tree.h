/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_REGION_CACHE_TREE_H
#define PIER_REGION_CACHE_TREE_H

#include <stddef.h>
#include <stdint.h>

/*
 * Ranges [start, end), sorted by start, as a treap: the node lies in the object,
 * so that nothing is allocated or freed to insert or to remove, whatever is held
 * at that time. Ranges may overlap and be equal.
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

/* start and end are set; the rest is the tree's. */
void pier_tree_insert(struct pier_tree *tree, struct pier_tree_node *node);
/* The node is in the tree. */
void pier_tree_remove(struct pier_tree *tree, struct pier_tree_node *node);

/* Of the ranges that overlap [start, end), the one that starts first, or NULL. */
struct pier_tree_node *pier_tree_overlap(const struct pier_tree *tree, uint64_t start,
					 uint64_t end);

/* The first range that starts at `start` or after it, or NULL. */
struct pier_tree_node *pier_tree_from(const struct pier_tree *tree, uint64_t start);

/*
 * The last range that starts at `start` or before, or NULL. Where no range
 * encloses another it is the one that reaches farthest.
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
