/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/support/cmocka.h"
#include "tests/support/random.h"

#include <stdbool.h>
#include <stdlib.h>

#include "region/cache/tree.h"

/* The index of ranges beside a list that is searched linearly. */

enum {
	MOST = 5000
};

static struct pier_tree_node nodes[MOST];
static size_t count;

static const struct pier_tree_node *model_floor(uint64_t start)
{
	const struct pier_tree_node *found = NULL;

	for (size_t i = 0; i < count; i++)
		if (nodes[i].start <= start && (!found || nodes[i].start > found->start))
			found = &nodes[i];
	return found;
}

static const struct pier_tree_node *model_from(uint64_t start, uint64_t end,
					       uint64_t past)
{
	const struct pier_tree_node *found = NULL;

	for (size_t i = 0; i < count; i++)
		if (nodes[i].start >= start && nodes[i].start < end &&
		    nodes[i].end > past && (!found || nodes[i].start < found->start))
			found = &nodes[i];
	return found;
}

/* Ranges with the same start are interchangeable. */
static void check_same(const struct pier_tree_node *node,
		       const struct pier_tree_node *model)
{
	assert_int_equal(node != NULL, model != NULL);
	if (node)
		assert_int_equal(node->start, model->start);
}

static void check_at(const struct pier_tree *tree, uint64_t start, uint64_t length)
{
	uint64_t end = start + length;
	const struct pier_tree_node *found = pier_tree_overlap(tree, start, end);

	check_same(found, model_from(0, end, start));
	if (found)
		assert_true(found->end > start);
	check_same(pier_tree_floor(tree, start), model_floor(start));
	check_same(pier_tree_from(tree, start), model_from(start, UINT64_MAX, 0));
}

static size_t check_order(const struct pier_tree_node *node, uint64_t low, uint64_t high)
{
	if (!node)
		return 0;
	assert_in_range(node->start, low, high);
	if (node->left)
		assert_true(node->left->priority <= node->priority);
	if (node->right)
		assert_true(node->right->priority <= node->priority);
	return 1 + check_order(node->left, low, node->start) +
	       check_order(node->right, node->start, high);
}

static size_t depth(const struct pier_tree_node *node)
{
	size_t left, right;

	if (!node)
		return 0;
	left = depth(node->left);
	right = depth(node->right);
	return 1 + (left > right ? left : right);
}

static void insert_random(struct pier_tree *tree, struct test_random *random,
			  uint64_t space)
{
	struct pier_tree_node *node = &nodes[count++];

	node->start = test_random_below(random, space);
	node->end = node->start + 1 + test_random_below(random, 50);
	pier_tree_insert(tree, node);
}

/* The last entry fills the removed slot of the model, so reinsert it in the tree. */
static void remove_random(struct pier_tree *tree, struct test_random *random)
{
	size_t victim = test_random_below(random, count);

	pier_tree_remove(tree, &nodes[victim]);
	count--;
	if (victim == count)
		return;
	pier_tree_remove(tree, &nodes[count]);
	nodes[victim] = nodes[count];
	pier_tree_insert(tree, &nodes[victim]);
}

static void agrees_with_a_list(void **state)
{
	static const size_t sizes[] = { 1, 2, 3, 10, 100, 1000, MOST };
	struct test_random random = test_random_start();
	struct pier_tree tree = { NULL };

	(void)state;
	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
		/* Dense and sparse ranges. */
		uint64_t space = sizes[s] * (1 + test_random_below(&random, 100));

		count = 0;
		tree.root = NULL;
		for (int step = 0; step < 3000 || count < sizes[s]; step++) {
			bool full = count == sizes[s];

			if (count > 0 && (full || test_random_below(&random, 3) == 0))
				remove_random(&tree, &random);
			else
				insert_random(&tree, &random, space);
			if (step % 16 == 0 || sizes[s] <= 10)
				check_at(&tree, test_random_below(&random, space + 60),
					 test_random_below(&random, 60));
		}
		assert_int_equal(check_order(tree.root, 0, UINT64_MAX), count);
		while (count > 0)
			remove_random(&tree, &random);
		assert_null(tree.root);
	}
}

/* In any order of insertion: 1.39 log2(n) deep on average, 3 times that at worst. */
static void stays_balanced(void **state)
{
	struct pier_tree tree = { NULL };

	(void)state;
	for (size_t i = 0; i < MOST; i++) {
		nodes[i].start = i * 10;
		nodes[i].end = i * 10 + 10;
		pier_tree_insert(&tree, &nodes[i]);
	}
	assert_in_range(depth(tree.root), 13, 50);
}

static void handles_both_ends_of_the_address_space(void **state)
{
	struct pier_tree tree = { NULL };
	struct pier_tree_node last = { .start = UINT64_MAX - 10, .end = UINT64_MAX };

	(void)state;
	assert_null(pier_tree_overlap(&tree, 0, UINT64_MAX));
	assert_null(pier_tree_floor(&tree, UINT64_MAX));
	pier_tree_insert(&tree, &last);
	assert_ptr_equal(pier_tree_floor(&tree, UINT64_MAX), &last);
	assert_null(pier_tree_floor(&tree, UINT64_MAX - 11));
	assert_null(pier_tree_overlap(&tree, 0, last.start));
	assert_ptr_equal(pier_tree_overlap(&tree, 0, last.start + 1), &last);
	assert_null(pier_tree_overlap(&tree, UINT64_MAX, UINT64_MAX));
	pier_tree_remove(&tree, &last);
	assert_null(tree.root);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(agrees_with_a_list),
		cmocka_unit_test(stays_balanced),
		cmocka_unit_test(handles_both_ends_of_the_address_space),
	};

	return cmocka_run_group_tests_name("cache_tree", tests, NULL, NULL);
}
