"""The sales of each night, as they were in Airflow 3. ``sales.yaml`` is the same for Asterism."""

from datetime import datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

with DAG(
    "sales",
    schedule="0 3 * * *",
    start_date=datetime(2026, 11, 1),
    catchup=True,
    max_active_runs=2,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=5), "pool": "warehouse"},
) as dag:
    day = "/data/sales/{{ data_interval_end | ds }}"
    extract = BashOperator.partial(
        task_id="extract",
        bash_command=f"mkdir -p {day} && read-sales $SHOP > {day}/$SHOP.csv",
    ).expand(env=[{"SHOP": shop} for shop in ("berlin", "lyon", "porto")])
    join = BashOperator(task_id="join", bash_command=f"cat {day}/*.csv | tee {day}.csv | wc -l")
    alarm = BashOperator(task_id="alarm", bash_command="echo 'no sales of {{ ds }}'", trigger_rule="one_failed")
    cleanup = BashOperator(task_id="cleanup", bash_command=f"rm -rf {day}", trigger_rule="all_done")
    extract >> join >> cleanup
    [extract, join] >> alarm
