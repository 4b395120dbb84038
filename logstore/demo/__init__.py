"""The main job, end to end, on recorded conversations: `python -m logstore.demo`.

`logstore ingest` uses the same graph and the same reading of the recordings. What is in
here needs the extra `langgraph`.
"""
