"""The known pitfalls of serving large downloads with Twisted, and the tests that a naive server fails.

A slow client is aborted once its response was handed to the kernel:
    test_slow_reader_receives_what_the_kernel_still_buffers,
    test_half_closed_slow_reader_receives_what_the_kernel_buffers
A reader that stops is never aborted:
    test_reader_that_stops_is_aborted, test_client_that_never_reads_the_end_is_aborted
A slow reader is considered stalled, because the kernel's buffers hide its progress:
    test_reader_at_10_kib_per_second_is_not_aborted
A shrinking file is read forever, or gives a response that looks complete:
    test_shrinking_file_aborts_the_response,
    test_shrunk_file_never_gives_a_response_that_looks_complete
Pull producers run on the global Cooperator:
    test_large_response_is_pushed
The disk blocks the reactor, or a paused client keeps a thread:
    test_slow_disk_delays_no_other_connection, test_reactor_never_waits_for_a_cold_file
Content is read, and even requested by 100 (Continue), before it is refused:
    test_content_is_refused_before_it_is_read, test_endless_sender_can_read_the_response
Every byte extends the deadline, so that a head may take forever:
    test_byte_by_byte_head_does_not_extend_the_deadline,
    test_byte_by_byte_handshake_does_not_extend_the_deadline,
    test_empty_lines_do_not_extend_the_idle_deadline, test_linger_ends_although_the_client_keeps_sending
A HEAD response has other fields than the GET, or content:
    test_head_has_the_fields_of_the_get_and_no_content, test_refusal_of_a_head_request_has_no_content
A disconnect raises, or leaves resources behind:
    every test of test_connection_disconnects
A disconnect is not noticed while input is paused:
    test_stalled_reader_is_aborted_while_its_input_is_paused,
    test_disconnect_while_the_request_is_handled_and_input_is_paused
Connections are not limited, or an overloaded listener answers no probe:
    test_overloaded_listener_answers_only_probes,
    test_probe_is_answered_beyond_a_reserve_of_silent_connections
Closing flushes forever, or resets:
    test_client_that_never_reads_the_end_is_aborted, test_linger_ends_although_the_client_stays_open,
    test_close_does_not_reset_unread_responses,
    test_linger_ends_when_the_client_closes_while_input_was_paused
A shutdown aborts responses in progress, or waits for them forever:
    test_drain_lets_responses_finish,
    test_drain_aborts_responses_after_its_timeout
TLS copies whole images into memory, or hides that the client does not read:
    test_memory_is_independent_of_range_size_and_reader,
    test_responses_are_not_buffered_for_a_client_that_does_not_read,
    test_client_that_closes_tls_within_a_response_is_gone
HTTP/1.1 without Host, or an unsupported version, is answered:
    test_unsupported_request_is_refused
Responses wait for Nagle, or for a turn of the reactor that they do not need:
    test_responses_do_not_wait_for_nagle, test_small_response_is_sent_in_the_turn_of_its_request
One fast reader delays all others:
    test_connection_yields_to_the_reactor_after_a_few_mib, test_small_responses_end_a_turn_too
Heads have no limits:
    test_head_beyond_the_limit_is_refused,
    test_too_many_fields_are_refused, test_overlong_target_is_refused
Pipelined requests are answered out of order, or buffered without limit:
    test_later_requests_wait_for_a_slow_response, test_pipelined_requests_are_buffered_up_to_a_limit
Bytes that one parser takes for content are a request to another:
    test_smuggled_request_is_never_answered, test_any_bytes_get_valid_responses_or_a_close

Ranges, preconditions and their corner cases are tested with their modules.
"""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent


def test_every_test_named_above_exists() -> None:
    tests = {
        name
        for module in HERE.glob("test_*.py")
        for name in [
            module.stem,
            *re.findall(r"^(?:async )?def (test_\w+)", module.read_text(), re.MULTILINE),
        ]
    }
    named = set(re.findall(r"\btest_\w+", __doc__ or ""))
    assert named <= tests, named - tests
    assert len(named) > 30
