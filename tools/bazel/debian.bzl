"""Repositories that Debian's Bazel reads from disk instead of the network."""

def debian_repositories():
    """Declares repositories for Debian's bazel-bootstrap; otherwise does nothing.

    The two inside this workspace cannot be set by --override_repository in
    .bazelrc: Bazel 4 needs absolute paths there and has no %workspace%.
    """
    if native.bazel_version:
        # A release. Debian's build reports "no_version", which is "" here.
        return

    # Debian's bazel-rules-cc is too new for its own Bazel.
    native.local_repository(
        name = "rules_cc",
        path = "tools/bazel/rules_cc",
    )
    native.local_repository(
        name = "remote_coverage_tools",
        path = "tools/bazel/remote_coverage_tools",
    )

    # Packages bazel-rules-java and bazel-rules-proto.
    native.local_repository(
        name = "rules_java",
        path = "/usr/share/bazel/rules/java",
    )
    native.local_repository(
        name = "rules_proto",
        path = "/usr/share/bazel/rules/proto",
    )
