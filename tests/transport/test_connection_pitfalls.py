"""The known pitfalls of serving large downloads with Twisted, and the tests that a naive server fails.

A slow client is cut off once its answer was handed over:
    test_a_slow_reader_gets_what_only_the_kernel_still_holds,
    test_a_slow_reader_that_has_closed_its_side_gets_it_too
A reader that stops is never cut off:
    test_a_reader_that_stops_is_cut_off, test_who_never_reads_the_end_is_cut_off
A slow reader is taken for one that has stopped, because the kernel's buffers hide its progress:
    test_a_reader_at_10_kib_a_second_is_not
A file that shrinks is read for ever, or makes an answer that looks complete:
    test_a_file_that_shrinks_cuts_the_answer,
    test_a_file_that_has_shrunk_never_makes_an_answer_that_looks_complete
Pull producers run on the global Cooperator:
    test_a_large_answer_is_pushed
The disk blocks the reactor, or a paused client keeps a thread:
    test_a_slow_disk_keeps_nobody_else_waiting, test_a_cold_file_is_never_waited_for_by_the_reactor
Content is taken in, and even asked for by 100 (Continue), before anybody wants it:
    test_content_is_refused_before_it_is_read, test_who_sends_without_end_can_read_the_answer
Every byte renews the deadline, so that a head may take for ever:
    test_a_head_in_drops_does_not_last_longer, test_a_handshake_in_drops_does_not_last_longer,
    test_empty_lines_do_not_keep_a_connection, test_a_client_that_goes_on_in_drops_is_not_waited_for
A HEAD has other fields than the GET, or content:
    test_a_head_has_the_fields_of_the_get_and_nothing_behind_them, test_the_refusal_of_a_head_has_no_content
A disconnect raises somewhere, or leaves something behind:
    every test of test_connection_disconnects
A disconnect is not seen while nothing is read:
    test_a_reader_that_is_not_listened_to_is_cut_off,
    test_while_the_application_is_waited_for_and_nothing_is_read
Connections are not counted, or a full house answers no probe:
    test_beyond_the_limit_only_probes_are_answered, test_beyond_the_reserve_connections_are_closed
Closing flushes for ever, or resets:
    test_who_never_reads_the_end_is_cut_off, test_a_client_that_keeps_its_side_open_is_not_waited_for,
    test_no_reset_destroys_what_the_client_has_not_read_yet,
    test_a_client_that_closes_ends_the_wait_also_when_nothing_was_read_any_more
A service that ends cuts what is under way, or waits for it for ever:
    test_answers_under_way_are_finished_when_the_service_goes,
    test_answers_that_take_too_long_are_cut_when_the_service_goes
TLS copies whole images into memory, or hides that nobody reads:
    test_memory_depends_neither_on_the_size_of_a_range_nor_on_the_reader,
    test_answers_do_not_pile_up_before_a_client_that_does_not_read,
    test_a_client_that_ends_tls_within_an_answer_is_gone
HTTP/1.1 without Host is answered, or versions that are not ours:
    test_a_request_that_is_none_of_ours_is_refused
Answers wait for Nagle, or for a turn of the reactor that they do not need:
    test_answers_do_not_wait_for_nagle, test_a_small_answer_goes_out_in_the_tick_of_its_request
One quick reader keeps all the others waiting:
    test_nobody_keeps_the_reactor_for_more_than_a_few_mib, test_small_answers_end_a_turn_too
Heads have no limits:
    test_a_head_beyond_the_limit_is_refused,
    test_the_number_of_fields_has_a_limit, test_the_target_has_a_limit
Pipelined requests are answered out of order, or pile up:
    test_nothing_overtakes_an_answer_that_takes_longer, test_requests_pile_up_only_as_far_as_the_buffer_goes
What one reader takes for content, another takes for a request:
    test_nothing_hides_behind_a_request, test_any_bytes_get_sound_answers_or_an_end

Ranges, preconditions and their corner cases are shown beside the modules that decide them.
"""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent


def test_every_test_that_is_named_above_exists() -> None:
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
