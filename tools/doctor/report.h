/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef PIER_TOOLS_DOCTOR_REPORT_H
#define PIER_TOOLS_DOCTOR_REPORT_H

#include <stdbool.h>
#include <stddef.h>

#include "facts.h"

/* The conclusions that the checks draw from the facts. */

/* In the order of their weight. */
enum verdict {
	NOT_APPLICABLE,
	OK,
	WARNING,
	ERROR,
};

struct finding {
	const char *group, *check;
	enum verdict verdict;
	char *subject;	/* the NIC, GPU or pair; "" */
	char *evidence; /* the file, value or errno */
	char *remedy;	/* the command to type; "" */
};

struct report {
	struct facts *facts;
	unsigned long ranks;	   /* planned on this host; 0: not given */
	const char *group, *check; /* that runs now */
	/* Of a check of pairs or ports: "cuda:0 - mlx5_0", "mlx5_0/1". */
	char subject[2 * FACT_NAME_MAX + 8];
	struct finding *list;
	size_t count;
};

/* A check of a GPU, by its spec: "cuda:0", or of a NIC. */
typedef void name_check(struct report *report, const char *name);
/* A check of a NIC, with the folder of its PCI device. */
typedef void pci_check(struct report *report, const char *nic, const char *folder);
/* A check of a pair: memory, by its spec, and a NIC; or a NIC and the number of a port.
 */
typedef void pair_check(struct report *report, const char *first, const char *second);

/* A subject, and the functions that examine it; one of them is enough. */
struct check {
	const char *group;
	const char *name;
	void (*once)(struct report *report);
	name_check *each_gpu, *each_opened_nic;
	pci_check *each_pci_nic;
	pair_check *each_distance; /* pairs of a GPU and a NIC */
	pair_check *each_reach;	   /* pairs of memory and a NIC */
	/* Ports of NICs in sysfs, and of those that libibverbs opened. */
	pair_check *each_port, *each_opened_port;
};

/* The last one has no name. */
extern const struct check doctor_kernel_checks[];
extern const struct check doctor_memory_checks[];
extern const struct check doctor_nic_checks[];
extern const struct check doctor_gpu_checks[];
extern const struct check doctor_path_checks[];
extern const struct check doctor_limit_checks[];
extern const struct check doctor_transfer_checks[];

/*
 * Print the registrations of a file that libpier-dmabuf.so wrote. Returns the exit
 * status.
 */
int show_registrations(const char *name);

/*
 * Facts that no file has: limits of this process, what it may open, and the answers of
 * the library. Small transfers are made on the way, of memory that is allocated for them.
 *
 * device  the only one to look at, or NULL: all NICs, or soft0 without one
 * memory  the only kind to look at beside "host", or NULL: all kinds that work here
 */
void collect_facts(struct facts *facts, const char *device, const char *memory);

/*
 * Keep the lines of the running kernel's configuration that checks ask for: "y" or "m",
 * or "n" if a line says that the option is not set. "pier/config" is the file's name.
 */
void keep_kernel_config(struct facts *facts);
/* Keep the limits of this process, its environment, and which devices it may open. */
void keep_process(struct facts *facts);
/*
 * Keep what only NVIDIA's management library (libnvidia-ml.so.1) knows of a GPU: the size
 * and the use of BAR1, and the MIG mode.
 *
 * gpu  its spec, under which they are kept
 * pci  its address
 */
void keep_nvml(struct facts *facts, const char *gpu, const char *pci);

void free_report(struct report *report);
enum verdict worst_verdict(const struct report *report);

/* Add a finding of the check that runs. remedy: "": none is needed. */
void conclude(struct report *report, enum verdict verdict, const char *subject,
	      const char *remedy, const char *evidence, ...)
	__attribute__((format(printf, 5, 6)));

/* Run a check for all that it looks at, or conclude that there is nothing of the kind. */
void run_check(struct report *report, const struct check *check);

/* The NICs of this machine except soft0, or the only one that --device named. */
struct names list_nics(struct report *report);
/* Whether the function holds for one of the names below a path. */
bool any_name(struct report *report, const char *above,
	      bool (*holds)(struct report *report, const char *name));
/* The folder of a PCI device: of its link in /sys/bus/pci/devices. False: no such one. */
bool find_pci(struct report *report, const char *address, char ret_folder[FACT_PATH_MAX]);
/* Likewise of a NIC; software has none. */
bool find_nic_pci(struct report *report, const char *nic, char ret_folder[FACT_PATH_MAX]);
bool find_gpu_pci(struct report *report, const char *gpu, char ret_folder[FACT_PATH_MAX]);

/* user_namespaces(7): in the first one, all ids map to themselves. */
bool is_first_user_namespace(struct facts *facts);
/* Whether this NIC could be opened. */
bool was_opened(struct report *report, const char *nic);
/* Whether root collected the facts: some files are readable by root only. */
bool is_root(struct report *report);
/* Whether a counter of a port in sysfs counts errors. */
bool counts_errors(const char *name);

/*
 * ACS Control in the configuration space of a PCI device, which is in hexadecimal, as
 * facts_get() returns it. -1: it cannot be read (only root can read more than the
 * first 64 bytes); -2: the device has no ACS. The bits are those of pci_regs.h in the
 * kernel.
 */
long pci_acs_control(const char *config);

/* On standard output, with at most 80 columns. */
void print_report_text(const struct report *report);
void print_report_json(const struct report *report);

#endif
