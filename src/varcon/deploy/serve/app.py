"""The page and the API over HTTP. All that computes goes through one thread: visitors are served in turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException

from varcon.core import InputError
from varcon.deploy.serve.answers import Answer, Answers
from varcon.deploy.serve.gallery import thumbnails
from varcon.deploy.serve.uploads import Refused, decode, read_files

Result = TypeVar("Result")

PAGE = Path(__file__).parent / "page.html"
UPLOADS_AT_ONCE = 8  # requests that are read side by side; with the limit of a file this bounds memory
READ = ["GET", "HEAD"]  # what watches over servers asks by HEAD whether they are up
SAFE = {
    "Content-Security-Policy": "default-src 'none'; img-src 'self' blob: data:; connect-src 'self'; "
    "style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def make_app(answers: Answers, host_names: set[str] | None = None) -> FastAPI:
    """`host_names` are those under which the server may be called; None: any."""
    worker = ThreadPoolExecutor(1, thread_name_prefix="varcon")
    page = PAGE.read_text(encoding="utf-8")
    thumbnail_of = thumbnails(answers.gallery) if answers.gallery else None
    uploads = asyncio.Semaphore(UPLOADS_AT_ONCE)

    async def in_turn(work: Callable[..., Result], *arguments: object) -> Result:
        return await asyncio.get_running_loop().run_in_executor(worker, work, *arguments)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        worker.shutdown(cancel_futures=True)

    async def check_host(request: Request) -> None:
        # Else a page from elsewhere could give its own name this machine's address, and read the answers.
        if host_names is not None and request.url.hostname not in host_names:
            raise Refused(403, f"this server answers to {' and '.join(sorted(host_names))} only")

    app = FastAPI(
        lifespan=lifespan,
        dependencies=[Depends(check_host)],
        openapi_url=None,  # and with it the pages of documentation, which load scripts from elsewhere
        exception_handlers={
            Refused: refused,
            InputError: cannot,
            HTTPException: not_served,
            RequestValidationError: no_number,
            Exception: failed,
        },
    )

    @app.api_route("/", methods=READ)
    async def show_page() -> Response:
        return HTMLResponse(page, headers={**SAFE, "Cache-Control": "no-cache"})

    @app.api_route("/api/model", methods=READ)
    async def model() -> Answer:
        return answers.about()

    @app.api_route("/api/map", methods=READ)
    async def map_of_images() -> Answer:
        return await in_turn(answers.map)

    @app.api_route("/api/neighbours/{number}", methods=READ)
    async def neighbours(number: int) -> Answer:
        return await in_turn(answers.neighbours, number)

    @app.api_route("/api/thumbnail/{number}", methods=READ)
    async def thumbnail(number: int, session: str = "") -> Response:
        answers.known(number)
        assert thumbnail_of
        try:
            content, kind = await in_turn(thumbnail_of, number)
        except InputError:  # whose sentence tells a path of this machine
            raise Refused(404, f"the file of image {number} is gone or cannot be read any more") from None
        keep = "private, max-age=86400" if session == answers.session else "no-store"
        return Response(content, media_type=kind, headers={**SAFE, "Cache-Control": keep})

    @app.post("/api/predict")
    async def predict(request: Request) -> Response:
        results: list[Answer] = []
        good, pixels, refusals = [], [], []
        async with uploads:
            async for upload in read_files(request):
                results.append({"name": upload.name})
                try:
                    pixels.append(await in_turn(decode, upload, answers.model.config.image_size))
                    good.append(len(results) - 1)
                except Refused as error:
                    refusals.append(error)
                    results[-1] |= {"error": error.sentence, "status": error.status}
            found = await in_turn(answers.predict, pixels)
        if not results:
            raise Refused(
                400, "the request holds no file; send images, for example: curl -F image=@photo.jpg"
            )
        for place, one in zip(good, found, strict=True):
            results[place] |= one
        if good:
            return JSONResponse({"images": results})
        return JSONResponse(
            {"error": refusals[0].sentence, "images": results}, status_code=refusals[0].status
        )

    return app


def tell(status: int, sentence: str) -> Response:
    return JSONResponse({"error": sentence}, status_code=status)


async def refused(request: Request, found: Any) -> Response:
    return tell(found.status, found.sentence)


async def not_served(request: Request, found: Any) -> Response:
    what = {404: "there is nothing at", 405: f"{request.method} is not how to ask at"}
    answer = tell(found.status_code, f"{what.get(found.status_code, found.detail)} {request.url.path}")
    answer.headers.update(found.headers or {})  # of 405 it says how to ask
    return answer


async def no_number(request: Request, found: Any) -> Response:
    return tell(404, "an image is named by its number, a whole one")


async def cannot(request: Request, found: Any) -> Response:
    return tell(500, str(found))  # of a model whose features are not numbers


async def failed(request: Request, found: Any) -> Response:
    return tell(500, "the server has failed at this; its terminal tells more")
