/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_FAULTS_TABLE_H
#define TESTS_FAULTS_TABLE_H

#include <stdio.h>

/* A program of many cases whose outcomes are a table in docs/testing.md. */
struct outcome_table {
	const char *program;
	const char *name; /* in its marks: <!-- NAME: begin --> and <!-- NAME: end --> */
	void (*print)(FILE *file);
	/*
	 * Runs the cases that match a pattern, or all (NULL). Returns the number of
	 * failures.
	 */
	int (*run)(const char *pattern);
};

/*
 * The program's main(): "--table" prints the table, and any other word is a pattern of
 * cases. Without a word all cases run, and the table is compared with the page's.
 */
int table_main(int argc, char **argv, const struct outcome_table *table);

/* If a case takes longer than this, the program aborts and prints its name. */
void case_begins(const char *name, unsigned int seconds);
void case_ends(void);

#endif
