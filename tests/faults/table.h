/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef TESTS_FAULTS_TABLE_H
#define TESTS_FAULTS_TABLE_H

#include <stdio.h>

/* A program of many cases whose outcomes are a table of docs/testing.md. */
struct outcome_table {
	const char *program;
	const char *name; /* in its marks: <!-- NAME: begin --> and <!-- NAME: end --> */
	void (*print)(FILE *file);
	/* The cases that match a pattern, or all (NULL). Returns how many failed. */
	int (*run)(const char *pattern);
};

/*
 * What main() is: "--table" prints the table, another word is a pattern of cases, and
 * without any the table is compared with the page's as well.
 */
int table_main(int argc, char **argv, const struct outcome_table *table);

/* A case that takes longer than so many seconds hangs: the program ends with its name. */
void case_begins(const char *name, unsigned int seconds);
void case_ends(void);

#endif
