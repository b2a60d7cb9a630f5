/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>
#include <stdbool.h>

#include "tree.h"

/* The order of ranges with the same start is that of their nodes' addresses. */
static bool is_before(const struct pier_tree_node *a, const struct pier_tree_node *b)
{
	if (a->start != b->start)
		return a->start < b->start;
	return (uintptr_t)a < (uintptr_t)b;
}

/* A priority as good as random, without state: the finaliser of SplitMix64. */
static uint64_t hash_address(uint64_t value)
{
	value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
	value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
	return value ^ (value >> 31);
}

static void update_reach(struct pier_tree_node *node)
{
	node->reach = node->end;
	if (node->left && node->left->reach > node->reach)
		node->reach = node->left->reach;
	if (node->right && node->right->reach > node->reach)
		node->reach = node->right->reach;
}

/* Into the nodes before `at` and those after it, in logarithmic time. */
static void split_tree(struct pier_tree_node *root, const struct pier_tree_node *at,
		       struct pier_tree_node **ret_left,
		       struct pier_tree_node **ret_right)
{
	if (!root) {
		*ret_left = *ret_right = NULL;
	} else if (is_before(root, at)) {
		split_tree(root->right, at, &root->right, ret_right);
		*ret_left = root;
		update_reach(root);
	} else {
		split_tree(root->left, at, ret_left, &root->left);
		*ret_right = root;
		update_reach(root);
	}
}

static struct pier_tree_node *merge_trees(struct pier_tree_node *left,
					  struct pier_tree_node *right)
{
	struct pier_tree_node *root;

	if (!left || !right)
		return left ? left : right;
	if (left->priority > right->priority) {
		root = left;
		root->right = merge_trees(left->right, right);
	} else {
		root = right;
		root->left = merge_trees(left, right->left);
	}
	update_reach(root);
	return root;
}

void pier_tree_insert(struct pier_tree *tree, struct pier_tree_node *node)
{
	struct pier_tree_node **link = &tree->root;

	node->priority = hash_address((uintptr_t)node);
	while (*link && (*link)->priority > node->priority) {
		if ((*link)->reach < node->end)
			(*link)->reach = node->end;
		link = is_before(*link, node) ? &(*link)->right : &(*link)->left;
	}
	split_tree(*link, node, &node->left, &node->right);
	*link = node;
	update_reach(node);
}

static struct pier_tree_node *tree_without(struct pier_tree_node *root,
					   const struct pier_tree_node *node)
{
	assert(root);
	if (root == node)
		return merge_trees(root->left, root->right);
	if (is_before(root, node))
		root->right = tree_without(root->right, node);
	else
		root->left = tree_without(root->left, node);
	update_reach(root);
	return root;
}

void pier_tree_remove(struct pier_tree *tree, struct pier_tree_node *node)
{
	tree->root = tree_without(tree->root, node);
}

struct pier_tree_node *pier_tree_overlap(const struct pier_tree *tree, uint64_t start,
					 uint64_t end)
{
	struct pier_tree_node *node = tree->root;

	while (node && node->reach > start) {
		/* A range on the left that reaches past `start` begins before this one.
		 */
		if (node->left && node->left->reach > start)
			node = node->left;
		else if (node->start >= end || node->end > start)
			return node->start < end ? node : NULL;
		else
			node = node->right;
	}
	return NULL;
}

struct pier_tree_node *pier_tree_from(const struct pier_tree *tree, uint64_t start)
{
	struct pier_tree_node *node = tree->root, *found = NULL;

	while (node) {
		if (node->start >= start) {
			found = node;
			node = node->left;
		} else {
			node = node->right;
		}
	}
	return found;
}
