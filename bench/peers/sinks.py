"""Sends a run folder to the real programs and reads it back with them: tensorboard, trackio, and an mlflow server on loopback.

usage: python bench/peers/sinks.py RUN_DIR OUT.json      in a Python with: pip install tensorboard trackio mlflow
Each number of metrics.jsonl must be there, at its step. node must be on PATH. Takes half a minute; installing takes longer.
"""
import importlib.metadata
import json
import math
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time

root = pathlib.Path(__file__).resolve().parents[2]


def sync(run, name, env):
    subprocess.run(['node', str(root / 'cli.js'), 'report', str(run), '--sync', name], check=True, env={**os.environ, **env})


def compare(name, rows, found):
    """found: {(key, step): [values in order]}; the last one of a step counts, as in a chart."""
    wanted = {}
    for row in rows:
        for key, value in row.items():
            if key not in ('step', 'time') and value is not None:
                wanted[key, row['step']] = value
    missing = [key for key in wanted if key not in found]
    assert not missing, f'{name}: {len(missing)} values are missing, such as {missing[0]}'
    worst = max(abs(found[key][-1] - value) / max(1e-30, abs(value)) for key, value in wanted.items())
    assert worst < 1e-6, f'{name}: a value differs by {worst}'
    extra = len(set(found) - set(wanted))
    return {'version': importlib.metadata.version(name), 'values': len(wanted), 'extra': extra, 'worst_relative_error': worst}


def tensorboard(run, rows):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    sync(run, 'tensorboard', {})
    events = EventAccumulator(str(run / 'tensorboard'), size_guidance={'scalars': 0, 'tensors': 0})
    events.Reload()
    found = {}
    for tag in events.Tags()['scalars']:
        for event in events.Scalars(tag):
            assert event.wall_time > 1e9
            found.setdefault((tag, event.step), []).append(event.value)
    return compare('tensorboard', rows, found)


def trackio(run, rows, folder):
    os.environ['TRACKIO_DIR'] = str(folder)
    sync(run, 'trackio', {'TRACKIO_DIR': str(folder), 'TRACKIO_PROJECT': 'peers'})
    from trackio.sqlite_storage import SQLiteStorage
    # What its own server does first: bring the file to its own schema.
    SQLiteStorage.init_db('peers')
    assert SQLiteStorage.get_runs('peers') == [run.name], SQLiteStorage.get_runs('peers')
    assert SQLiteStorage.get_run_config('peers', run.name)
    found = {}
    for log in SQLiteStorage.get_logs('peers', run.name):
        for key, value in log.items():
            if key not in ('step', 'timestamp') and isinstance(value, (int, float)):
                found.setdefault((key, log['step']), []).append(value)
    return compare('trackio', rows, found)


def mlflow(run, rows, folder):
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        port = probe.getsockname()[1]
    url = f'http://127.0.0.1:{port}'
    store = f'sqlite:///{folder}/mlflow.db'
    command = [sys.executable, '-m', 'mlflow', 'server', '--host', '127.0.0.1', '--port', str(port), '--workers', '1',
               '--backend-store-uri', store, '--default-artifact-root', str(folder)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        import urllib.request
        for _ in range(120):
            try:
                urllib.request.urlopen(f'{url}/health', timeout=1)
                break
            except OSError:
                time.sleep(1)
        sync(run, 'mlflow', {'MLFLOW_TRACKING_URI': url, 'MLFLOW_EXPERIMENT_NAME': 'peers'})
        from mlflow.tracking import MlflowClient
        client = MlflowClient(url)
        experiment = client.get_experiment_by_name('peers')
        [made] = client.search_runs([experiment.experiment_id])
        assert made.info.run_name == run.name and made.info.status == 'FINISHED' and len(made.data.params) > 20
        found = {}
        for key in {key for row in rows for key in row} - {'step', 'time'}:
            name = 'reward/all/mean' if key == 'reward' else key.replace('@', '_at_')
            for metric in client.get_metric_history(made.info.run_id, name):
                found.setdefault((key, metric.step), []).append(metric.value)
        return compare('mlflow', rows, found)
    finally:
        import signal
        os.killpg(server.pid, signal.SIGTERM)


def main():
    source, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        run = folder / source.name
        run.mkdir()
        for name in ('metrics.jsonl', 'config.toml'):
            shutil.copy(source / name, run / name)
        rows = [json.loads(line) for line in (run / 'metrics.jsonl').read_text().splitlines()]
        assert all(math.isfinite(v) for row in rows for v in row.values() if v is not None)
        result = {'rows': len(rows)}
        result['tensorboard'] = tensorboard(run, rows)
        result['trackio'] = trackio(run, rows, folder / 'trackio')
        result['mlflow'] = mlflow(run, rows, folder)
    out.write_text(json.dumps(result, indent=2) + '\n')
    print(json.dumps(result, indent=2))


main()
