"""The twistd plugin; imports nothing of ours, because every twistd on the machine imports it."""

from twisted.application.service import ServiceMaker

image_service = ServiceMaker(
    "image-service",
    "image_service.tap",
    "Streams customised CoreOS boot images.",
    "image-service",
)
jobs = ServiceMaker(
    "image-service-jobs",
    "image_service.app.jobs.tap",
    "Composes disk images and ISOs as jobs, by osbuild-composer's APIs.",
    "image-service-jobs",
)
