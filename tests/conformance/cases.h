/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef CONFORMANCE_CASES_H
#define CONFORMANCE_CASES_H

/* Each file of cases runs its group and returns the number of failures. */
int run_message_cases(void);
int run_onesided_cases(void);
int run_wait_cases(void);
int run_scope_cases(void);
int run_error_cases(void);
int run_lifetime_cases(void);
int run_registration_cases(void);
int run_form_cases(void);
int run_asynchronous_cases(void);
int run_subregion_cases(void);
int run_dmabuf_cases(void);
int run_handshake_cases(void);
int run_counter_cases(void);
int run_counter_imm_cases(void);
int run_ping_pong_cases(void);
int run_receive_cases(void);
int run_process_cases(void);
int run_vector_cases(void);
int run_cache_cases(void);
int run_post_cases(void);
int run_group_cases(void);
int run_ring_cases(void);
int run_transfer_cases(void);
int run_receiver_cases(void);
int run_recovery_cases(void);
int run_shared_queue_cases(void);

#endif
