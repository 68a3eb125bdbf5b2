"""images.py DEBIAN.tar FILES.tar OUT.tar NAME[=COMMAND WORDS]...

Makes one archive of images, as container engines load it. All have the same two layers: a Debian, and files beside it.
"""
import hashlib
import io
import json
import sys
import tarfile

debian, files, out, *names = sys.argv[1:]


def digest(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


layers = {path: digest(path) for path in (debian, files)}
with tarfile.open(out, "w") as archive:

    def add(name, data):
        entry = tarfile.TarInfo(name)
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))

    for path, sha in layers.items():
        archive.add(path, f"{sha}.tar")
    manifest = []
    for name in names:
        name, _, command = name.partition("=")
        config = json.dumps({
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], **({"Entrypoint": command.split()} if command else {})},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{sha}" for sha in layers.values()]},
        }).encode()
        sha = hashlib.sha256(config).hexdigest()
        if not any(m["Config"] == f"{sha}.json" for m in manifest):
            add(f"{sha}.json", config)
        manifest.append({"Config": f"{sha}.json", "RepoTags": [name], "Layers": [f"{s}.tar" for s in layers.values()]})
    add("manifest.json", json.dumps(manifest).encode())
