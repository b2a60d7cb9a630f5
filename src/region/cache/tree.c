/* SPDX-License-Identifier: BSD-3-Clause */
#include <assert.h>
#include <stdbool.h>

#include "tree.h"

/* Ranges that start together are told apart by where they lie themselves. */
static bool before(const struct pier_tree_node *a, const struct pier_tree_node *b)
{
	if (a->start != b->start)
		return a->start < b->start;
	return (uintptr_t)a < (uintptr_t)b;
}

/* As good as random, and needs no state: the finaliser of SplitMix64. */
static uint64_t scatter(uint64_t value)
{
	value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
	value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
	return value ^ (value >> 31);
}

static void update(struct pier_tree_node *node)
{
	node->reach = node->end;
	if (node->left && node->left->reach > node->reach)
		node->reach = node->left->reach;
	if (node->right && node->right->reach > node->reach)
		node->reach = node->right->reach;
}

/* Those before `at` and those after it. As deep as the tree: logarithmic. */
static void split(struct pier_tree_node *root, const struct pier_tree_node *at,
		  struct pier_tree_node **ret_left, struct pier_tree_node **ret_right)
{
	if (!root) {
		*ret_left = *ret_right = NULL;
	} else if (before(root, at)) {
		split(root->right, at, &root->right, ret_right);
		*ret_left = root;
		update(root);
	} else {
		split(root->left, at, ret_left, &root->left);
		*ret_right = root;
		update(root);
	}
}

static struct pier_tree_node *merge(struct pier_tree_node *left,
				    struct pier_tree_node *right)
{
	struct pier_tree_node *root;

	if (!left || !right)
		return left ? left : right;
	if (left->priority > right->priority) {
		root = left;
		root->right = merge(left->right, right);
	} else {
		root = right;
		root->left = merge(left, right->left);
	}
	update(root);
	return root;
}

void pier_tree_insert(struct pier_tree *tree, struct pier_tree_node *node)
{
	struct pier_tree_node **link = &tree->root;

	node->priority = scatter((uintptr_t)node);
	while (*link && (*link)->priority > node->priority) {
		if ((*link)->reach < node->end)
			(*link)->reach = node->end;
		link = before(*link, node) ? &(*link)->right : &(*link)->left;
	}
	split(*link, node, &node->left, &node->right);
	*link = node;
	update(node);
}

static struct pier_tree_node *without(struct pier_tree_node *root,
				      const struct pier_tree_node *node)
{
	assert(root);
	if (root == node)
		return merge(root->left, root->right);
	if (before(root, node))
		root->right = without(root->right, node);
	else
		root->left = without(root->left, node);
	update(root);
	return root;
}

void pier_tree_remove(struct pier_tree *tree, struct pier_tree_node *node)
{
	tree->root = without(tree->root, node);
}

struct pier_tree_node *pier_tree_overlap(const struct pier_tree *tree, uint64_t start,
					 uint64_t end)
{
	struct pier_tree_node *node = tree->root;

	while (node && node->reach > start) {
		/* Whatever of the left reaches past `start` begins before this. */
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
