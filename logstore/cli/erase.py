"""`logstore erase`: deleting a thread, its bytes too, and proving it."""

from __future__ import annotations

from typing import Annotated

import typer

from logstore.cli.common import EXIT_PROBLEM, cell, console, notes, print_json
from logstore.cli.options import Json, ThreadId, Uri, existing_store, missing_thread
from logstore.encode import Target
from logstore.erase import Erasure, prove_erasure, purge_partition
from logstore.maintenance import Maintenance


def erase(
    uri: Uri,
    thread_id: ThreadId,
    now: Annotated[
        bool,
        typer.Option(
            "--now",
            help="Compact its partition, wait for the store's short grace (5 minutes, if it was "
            "not created with another), delete, and prove that nothing is left.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Delete a thread, so that no object of the store holds anything of it.

    Without --now the thread is shown no more at once, and its bytes go with the next compaction
    and its grace. What stays for good is the thread's id, in a row that says that it was deleted:
    a delayed copy of an old segment may land at any time, and must not bring the thread back.

    Earlier versions in a versioned bucket, backups, and cache directories of other machines are
    beyond the reach of this command.

    Exit codes: 0 done, 1 there is no such thread or something is left of it.

    Examples:

        logstore erase file:///var/lib/agents customer-42 --now

        logstore erase s3://bucket/agents customer-42 --now --json
    """
    name = Target.check_thread_id(thread_id)
    with existing_store(uri) as store:
        read = store.read_history(name, with_holes=True)
        if not read.view.records and not read.view.tombstones:
            raise missing_thread(store, name, read)
        Maintenance(store).delete_thread(name)
        if not now:
            if json:
                print_json({"uri": store.uri, "thread_id": name, "deleted": True})
            else:
                console.print(
                    cell(f"deleted thread {name!r}; its bytes go with the next compaction")
                )
            return
        with notes.status("") as line:
            purge_partition(store, store.partition(name), lambda text: line.update(cell(text)))
            line.update("looking for anything left")
            proof = prove_erasure(store, name)
    if json:
        print_json(proof.to_dict())
    else:
        _print(proof)
    if proof.left:
        raise typer.Exit(EXIT_PROBLEM)


def _tables(proof: Erasure) -> str:
    return f"{proof.tables} files of kept tables, " if proof.tables else ""


def _print(proof: Erasure) -> None:
    console.print(cell(f"looked for thread {proof.thread_id!r} in every object that may hold it:"))
    console.print(
        f"  {proof.segments} segments and {proof.runs} runs of its partition, {_tables(proof)}"
        f"{proof.objects} objects of its own"
    )
    if not proof.left:
        console.print("nothing is left of it but the statement that it was deleted", style="green")
        return
    console.print("something is left; it was written since, or by a job under way:", style="red")
    for one in proof.left:
        console.print(cell(f"  {one}"))
