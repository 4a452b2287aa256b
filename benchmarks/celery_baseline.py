"""The baseline a team would write first: Celery with Redis, one smtplib session a task, four processes, no guarantees.

Run by `benchmarks.campaign`; not a benchmark of its own.
"""

import asyncio
import os
import smtplib
import subprocess
import sys
import time
from email.message import EmailMessage

from celery import Celery

from benchmarks.sinks import Sink

app = Celery("baseline", broker=os.environ.get("BASELINE_REDIS", "redis://127.0.0.1:1/0"))
app.conf.task_ignore_result = True
app.conf.broker_connection_retry_on_startup = True

BODY = "Hello {name},\n\nyour plan {plan} in {city} has news.\n" + "\n".join(
    "This line is here to make the message as long as the others." for _ in range(28)
)


@app.task  # type: ignore[untyped-decorator]  # Celery has no types
def send(port: int, to: str, name: str, plan: str, city: str) -> None:
    message = EmailMessage()
    message["From"] = "bench@example.com"
    message["To"] = to
    message["Subject"] = f"News for {name}"
    message.set_content(BODY.format(name=name, plan=plan, city=city))
    with smtplib.SMTP("127.0.0.1", port) as smtp:
        smtp.send_message(message)


async def measure(sink: Sink, redis_url: str, messages: int) -> float:
    """Messages a second from the first enqueue to the last message at the sink."""
    environment = {**os.environ, "BASELINE_REDIS": redis_url}
    worker = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "benchmarks.celery_baseline", "worker",
         "--concurrency", "4", "--loglevel", "ERROR", "--without-gossip", "--without-mingle"],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        client = Celery("baseline-client", broker=redis_url)
        sink.reset()
        task = client.signature("benchmarks.celery_baseline.send")
        # One to show that the workers are up, so that their start is not counted.
        task.clone(args=(sink.port, "warm@example.com", "a", "b", "c")).apply_async()
        await sink.wait_for(1)
        sink.reset()
        start = time.monotonic()

        def enqueue() -> None:
            for n in range(messages):
                task.clone(
                    args=(sink.port, f"r{n}@example.com", f"Name{n}", "basic", "Lisbon")
                ).apply_async()

        await asyncio.to_thread(enqueue)
        await sink.wait_for(messages)
        return messages / (time.monotonic() - start)
    finally:
        worker.terminate()
        try:
            worker.wait(10)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
