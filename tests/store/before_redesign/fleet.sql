PRAGMA application_id = 1095980114;
PRAGMA user_version = 4;
BEGIN TRANSACTION;
CREATE TABLE contributions (
    run   TEXT NOT NULL,
    store TEXT NOT NULL,
    runs  INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    blobs INTEGER NOT NULL,
    PRIMARY KEY (run, store)
) WITHOUT ROWID;
INSERT INTO "contributions" VALUES('ffffffffffffffffffffffff','peer-store',1,300,0);
CREATE TABLE ends (
    run      TEXT PRIMARY KEY NOT NULL,
    ended_at REAL NOT NULL,
    seen_at  REAL NOT NULL
) WITHOUT ROWID;
INSERT INTO "ends" VALUES('ffffffffffffffffffffffff',1700000000.10725,1.70000000033907270432e+09);
CREATE TABLE feed (
    number  INTEGER PRIMARY KEY AUTOINCREMENT,
    run     TEXT NOT NULL UNIQUE,
    left_to TEXT,
    same    INTEGER NOT NULL DEFAULT 0,
    open    INTEGER NOT NULL DEFAULT 0
);
INSERT INTO "feed" VALUES(1,'018bcfe5686591b72265b1f5',NULL,0,0);
INSERT INTO "feed" VALUES(2,'018bcfe568aacd61d8f16adf',NULL,0,0);
INSERT INTO "feed" VALUES(3,'018bcfe568e01027c386bbc4',NULL,0,0);
INSERT INTO "feed" VALUES(4,'018bcfe569161e2f414c343c',NULL,0,0);
INSERT INTO "feed" VALUES(5,'018bcfe56917c2ce7ed4d57b',NULL,0,0);
INSERT INTO "feed" VALUES(6,'018bcfe5691e78e57311d8a3',NULL,0,0);
INSERT INTO "feed" VALUES(7,'018bcfe56927612ea6cecc1b',NULL,0,0);
INSERT INTO "feed" VALUES(8,'018bcfe5692935bfc9e9c616',NULL,0,0);
INSERT INTO "feed" VALUES(9,'ffffffffffffffffffffffff','peer-store',1,0);
INSERT INTO "feed" VALUES(11,'018bcfe5696aea7b5eb561a4',NULL,0,0);
INSERT INTO "feed" VALUES(13,'018bcfe5696e94b2a02f34a6',NULL,0,0);
INSERT INTO "feed" VALUES(15,'018bcfe569759b0810c67fd9',NULL,0,0);
CREATE TABLE notices (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    at     REAL NOT NULL,
    run    TEXT,
    said   TEXT NOT NULL
);
INSERT INTO "notices" VALUES(1,1.70000000022788572311e+09,'018bcfe568e01027c386bbc4','{"at":1700000000.2278857,"kind":"failed","message":"run 018bcfe568e01027c386bbc4 (parse) failed: JSONDecodeError: Expecting value: line 1 column 1 (char 0)","run":"018bcfe568e01027c386bbc4","device":"kitchen"}');
INSERT INTO "notices" VALUES(2,1.7000000003212018013e+09,NULL,'{"at":1700000000.3212018,"kind":"note","message":"the oven is hot","run":null,"device":"kitchen"}');
CREATE TABLE registers (
    key      TEXT PRIMARY KEY NOT NULL,
    value    TEXT NOT NULL,
    revision INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO "registers" VALUES('coordinator','{"device":"nightly@laptop","session":"018bcfe5696097b73ceb3ffd","epoch":1,"until":0.0,"lease":15.0}',2);
INSERT INTO "registers" VALUES('device/kitchen','{"session":"018bcfe56841dcf4f4bea973"}',1);
INSERT INTO "registers" VALUES('device/nightly@laptop','{"session":"018bcfe5696097b73ceb3ffd"}',1);
INSERT INTO "registers" VALUES('feed/id','{"id":"4e81dba9c04d4f99b4a13a75b2bef288"}',1);
INSERT INTO "registers" VALUES('journal/nightly/1700000000349270','{"schema":2,"part":0,"of":1,"text":"{\"plan\":{\"schema\":1,\"id\":\"nightly\",\"version\":0,\"state\":\"ready\",\"epochs\":0,\"started_at\":null,\"ended_at\":null,\"tasks\":[{\"task\":{\"id\":\"fetch\",\"inputs\":{\"delay\":0.0,\"result\":\"fetch done\"},\"call\":\"asyncio:sleep\"}},{\"task\":{\"id\":\"check\",\"inputs\":{\"delay\":0.0,\"result\":\"check done\"},\"call\":\"asyncio:sleep\"}},{\"task\":{\"id\":\"build\",\"inputs\":{\"delay\":1.0,\"result\":\"build done\"},\"call\":\"asyncio:sleep\"}},{\"task\":{\"id\":\"notify\",\"inputs\":{\"delay\":0.0,\"result\":\"notify done\"},\"call\":\"asyncio:sleep\"}},{\"task\":{\"id\":\"deploy\",\"inputs\":{\"delay\":0.0,\"result\":\"deploy done\"},\"call\":\"asyncio:sleep\"}}],\"dependencies\":[{\"source\":\"fetch\",\"target\":\"check\",\"on\":\"success\"},{\"source\":\"check\",\"target\":\"build\",\"on\":\"success\"},{\"source\":\"fetch\",\"target\":\"notify\",\"on\":\"success\"},{\"source\":\"build\",\"target\":\"deploy\",\"on\":\"success\"}],\"touched\":[],\"story\":[]},\"lock\":{\"waiting\":[],\"cycles\":[],\"opened\":0,\"progress_at_stuck\":-1}}"}',1);
INSERT INTO "registers" VALUES('journal/nightly/1700000000349271','{"schema":2,"epoch":1,"mark":"018bcfe5696421638b529b4a","steps":[["note",1700000000.3563666,"taken up",null,"by nightly@laptop, epoch 1"]]}',1);
INSERT INTO "registers" VALUES('journal/nightly/1700000000349272','{"schema":2,"epoch":1,"mark":"018bcfe5696421638b529b4a","steps":[["begin",1700000000.359384],["start","fetch","fleet",1700000000.3596637]]}',1);
INSERT INTO "registers" VALUES('journal/nightly/1700000000349273','{"schema":2,"epoch":1,"mark":"018bcfe5696421638b529b4a","steps":[]}',1);
INSERT INTO "registers" VALUES('journal/nightly/1700000000349274','{"schema":2,"epoch":1,"mark":"018bcfe5696421638b529b4a","steps":[["locate","fetch","nightly@laptop"]]}',1);
INSERT INTO "registers" VALUES('journal/nightly/1700000000349275','{"schema":2,"epoch":1,"mark":"018bcfe5696421638b529b4a","steps":[["note",1700000000.3641212,"run ended","fetch","run 018bcfe5696aea7b5eb561a4, epoch 1, on nightly@laptop"],["finish","fetch","completed",1700000000.3641398,"fetch done",null,true],["open",1700000000.3642325]]}',1);
INSERT INTO "registers" VALUES('journal/nightly/1700000000349276','{"schema":2,"epoch":1,"mark":"018bcfe5696421638b529b4a","steps":[]}',1);
INSERT INTO "registers" VALUES('journal/nightly/1700000000349277','{"schema":2,"epoch":1,"mark":"018bcfe5696421638b529b4a","steps":[["edit",{"edits":[{"op":"add_task","task":{"id":"lint","inputs":{"delay":0.0,"result":"lint done"},"call":"asyncio:sleep"}},{"op":"add_dependency","source":"build","target":"lint","on":"success"},{"op":"cancel_task","task_id":"notify","reason":"not needed"}],"author":"editor","reason":"","base_version":0,"triggers":["fetch"]},1700000000.3661513],["reviewed",1,1700000000.3664317,"accepted"],["start","check","fleet",1700000000.3665583]]}',1);
INSERT INTO "registers" VALUES('journal/nightly/1700000000349278','{"schema":2,"epoch":1,"mark":"018bcfe5696421638b529b4a","steps":[["locate","check","nightly@laptop"]]}',1);
INSERT INTO "registers" VALUES('journal/nightly/1700000000349279','{"schema":2,"epoch":1,"mark":"018bcfe5696421638b529b4a","steps":[["note",1700000000.3694255,"run ended","check","run 018bcfe5696e94b2a02f34a6, epoch 1, on nightly@laptop"],["finish","check","completed",1700000000.36944,"check done",null,true],["open",1700000000.3695102]]}',1);
INSERT INTO "registers" VALUES('journal/nightly/1700000000349280','{"schema":2,"epoch":1,"mark":"018bcfe5696421638b529b4a","steps":[]}',1);
INSERT INTO "registers" VALUES('journal/nightly/1700000000349281','{"schema":2,"epoch":1,"mark":"018bcfe5696421638b529b4a","steps":[["edit",{"edits":[],"author":"editor","reason":"","base_version":1,"triggers":["check"]},1700000000.3735423],["reviewed",2,1700000000.373595,"empty"],["start","build","fleet",1700000000.373691]]}',1);
INSERT INTO "registers" VALUES('journal/nightly/1700000000349282','{"schema":2,"epoch":1,"mark":"018bcfe5696421638b529b4a","steps":[["locate","build","nightly@laptop"]]}',1);
INSERT INTO "registers" VALUES('journal/nightly/1700000000349283','{"schema":2,"epoch":1,"mark":"018bcfe5696421638b529b4a","steps":[]}',1);
INSERT INTO "registers" VALUES('plan/nightly','{"name":"nightly","state":"executing","created_at":1700000000.3492703,"terms":{"policy":"scoped","max_cycles":4,"edit_timeout":600.0,"no_device_timeout":300.0,"losses":5,"strategy":"score"},"owner":"018bcfe5696097b73ceb3ffd","device":"nightly@laptop","epoch":1,"first":1700000000349270,"ended_at":null,"schema":2,"cancelling":false,"began":1700000000349270,"snapshot":null,"parts":0}',2);
INSERT INTO "registers" VALUES('series/beds','{"series":"beds","active":"018bcfe56927612ea6cecc1b","queue":["018bcfe5692935bfc9e9c616"],"since":1700000000.296,"updated_at":1700000000.297,"version":1,"revision":2}',2);
INSERT INTO "registers" VALUES('settings','{"keep":2592000.0,"large":500,"most":67108864,"hold":90.0,"lease":15.0,"peer_timeout":3600.0,"peer_runs":100000,"peer_bytes":1073741824,"peer_blobs":10737418240,"notify_command":null,"notify_url":null,"weights":{"load":40.0,"connection":30.0,"rank":20.0,"capability":10.0}}',1);
INSERT INTO "registers" VALUES('store/id','{"id":"3fc5aa492d68482eae1a1fb2fab0e5e4"}',1);
INSERT INTO "registers" VALUES('workflow-version/indent@1','{"name":"indent","call":"textwrap:indent","description":"first version","retries":1,"version":1}',1);
INSERT INTO "registers" VALUES('workflow-version/indent@2','{"name":"indent","call":"textwrap:indent","description":"second version","priority":3,"version":2}',1);
INSERT INTO "registers" VALUES('workflow-version/parse@1','{"name":"parse","call":"json:loads","version":1}',1);
INSERT INTO "registers" VALUES('workflow-version/plan:nightly@1','{"name":"plan:nightly","call":"asyncio:sleep","priority":2,"backoff":0.5,"version":1}',1);
INSERT INTO "registers" VALUES('workflow-version/render@1','{"name":"render","call":"asyncio:sleep","needs":["gpu"],"no_device_timeout":1000000000.0,"version":1}',1);
INSERT INTO "registers" VALUES('workflow-version/rest@1','{"name":"rest","call":"asyncio:sleep","version":1}',1);
INSERT INTO "registers" VALUES('workflow/indent','{"version":2}',2);
INSERT INTO "registers" VALUES('workflow/parse','{"version":1}',1);
INSERT INTO "registers" VALUES('workflow/render','{"version":1}',1);
INSERT INTO "registers" VALUES('workflow/rest','{"version":1}',1);
CREATE TABLE reports (
    run   TEXT PRIMARY KEY NOT NULL,
    epoch INTEGER NOT NULL,
    said  TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE runs (
    id            TEXT PRIMARY KEY NOT NULL,
    workflow      TEXT NOT NULL,
    version       INTEGER NOT NULL,
    created_at    REAL NOT NULL,
    series        TEXT,
    key           TEXT,
    priority      INTEGER NOT NULL,
    pinned        TEXT,
    timeout       REAL NOT NULL,
    revision      INTEGER NOT NULL,
    status        TEXT NOT NULL,
    epoch         INTEGER NOT NULL,
    device        TEXT,
    session       TEXT,
    wish          TEXT,
    avoid         TEXT NOT NULL,
    offered       INTEGER NOT NULL,
    due_at        REAL,
    not_before    REAL NOT NULL,
    waiting_since REAL,
    ended_at      REAL,
    urgency       INTEGER NOT NULL, -- the priority with its sign changed
    input         TEXT NOT NULL,
    state         TEXT NOT NULL
);
INSERT INTO "runs" VALUES('018bcfe5686591b72265b1f5','indent',2,1.70000000010148096085e+09,NULL,'greeting',3,NULL,90.0,5,'completed',1,'kitchen',NULL,NULL,'',0,NULL,0.0,NULL,1700000000.10725,-3,'{"text":"hello","prefix":"> "}','{"created_by":"ann","assigned_at":1700000000.102013,"claimed_at":1700000000.1051972,"started_at":1700000000.1051972,"assigned_by":"ann","output":"> hello","scores":{"kitchen":90.0},"story":[[1700000000.101481,"created","by ann"],[1700000000.102013,"assigning to other","kitchen, score 90.0 of 1"],[1700000000.102013,"assigned","to kitchen by ann, epoch 1"],[1700000000.1051972,"claimed","by kitchen"],[1700000000.1051972,"processing","on kitchen"],[1700000000.10725,"completed","on kitchen"]]}');
INSERT INTO "runs" VALUES('018bcfe568aacd61d8f16adf','indent',2,1.70000000017047691345e+09,NULL,'large',3,NULL,90.0,3,'completed',1,'kitchen',NULL,NULL,'',0,NULL,0.0,NULL,1.70000000017914891243e+09,-3,'{"$blob":"245e3822abeb2bd3cf5e10c81c0662d325fac9f2394f97da02929d0c9308661d","size":1525}','{"created_by":"ann","assigned_at":1700000000.1725261,"claimed_at":1700000000.1725261,"started_at":1700000000.1725261,"assigned_by":"kitchen","output":{"$blob":"79b53481c9ba58c680878758c2813da77ed393e7d8f321b6c37358ccea6c3932","size":1702},"story":[[1700000000.170477,"created","by ann"],[1700000000.1725261,"assigning to self","kitchen"],[1700000000.1725261,"claimed","by kitchen, epoch 1"],[1700000000.1725261,"processing","on kitchen"],[1700000000.179149,"completed","on kitchen"]]}');
INSERT INTO "runs" VALUES('018bcfe568e01027c386bbc4','parse',1,1.70000000022401356697e+09,NULL,'failed',0,NULL,90.0,3,'failed',1,'kitchen',NULL,NULL,'',0,NULL,0.0,NULL,1.70000000022788572311e+09,0,'{"s":"not json"}','{"created_by":"ann","assigned_at":1700000000.2263825,"claimed_at":1700000000.2263825,"started_at":1700000000.2263825,"assigned_by":"kitchen","error":"JSONDecodeError: Expecting value: line 1 column 1 (char 0)","failures":1,"previous":[["kitchen",1,1700000000.2263825,1700000000.2278857,"failed","JSONDecodeError: Expecting value: line 1 column 1 (char 0)"]],"story":[[1700000000.2240136,"created","by ann"],[1700000000.2263825,"assigning to self","kitchen"],[1700000000.2263825,"claimed","by kitchen, epoch 1"],[1700000000.2263825,"processing","on kitchen"],[1700000000.2278857,"failed","JSONDecodeError: Expecting value: line 1 column 1 (char 0)"]]}');
INSERT INTO "runs" VALUES('018bcfe569161e2f414c343c','render',1,1.70000000027806019783e+09,NULL,'offered',7,NULL,90.0,1,'created',0,NULL,NULL,NULL,'',1,NULL,0.0,1.70000000027806019783e+09,NULL,-7,'{"delay":0}','{"created_by":"ann","story":[[1700000000.2780602,"created","by ann"]]}');
INSERT INTO "runs" VALUES('018bcfe56917c2ce7ed4d57b','render',1,1.70000000027925848961e+09,NULL,'cancelled',0,NULL,90.0,2,'failed',0,NULL,NULL,NULL,'',0,NULL,0.0,NULL,1.70000000028352928162e+09,0,'{"delay":0}','{"created_by":"ann","error":"cancelled by ann","cancelled":true,"story":[[1700000000.2792585,"created","by ann"],[1700000000.2835293,"failed","cancelled by ann"]]}');
INSERT INTO "runs" VALUES('018bcfe5691e78e57311d8a3','render',1,1.70000000028693127632e+09,NULL,'paused',0,NULL,90.0,2,'created',0,NULL,NULL,NULL,'',0,NULL,0.0,1.70000000028693127632e+09,NULL,0,'{"delay":0}','{"created_by":"ann","paused":"by ann: not today","story":[[1700000000.2869313,"created","by ann"],[1700000000.2919776,"paused","by ann: not today"]]}');
INSERT INTO "runs" VALUES('018bcfe56927612ea6cecc1b','rest',1,1.70000000029589700699e+09,'beds','running',0,NULL,90.0,3,'processing',1,'kitchen','018bcfe56841dcf4f4bea973',NULL,'',0,NULL,0.0,NULL,NULL,0,'{"delay":3600.0,"result":"rested"}','{"created_by":"ann","assigned_at":1700000000.3005655,"claimed_at":1700000000.3005655,"started_at":1700000000.3005655,"assigned_by":"kitchen","story":[[1700000000.295897,"created","by ann"],[1700000000.295897,"its turn","it is the active run of series beds"],[1700000000.3005655,"assigning to self","kitchen"],[1700000000.3005655,"claimed","by kitchen, epoch 1"],[1700000000.3005655,"processing","on kitchen"]]}');
INSERT INTO "runs" VALUES('018bcfe5692935bfc9e9c616','rest',1,1.70000000029718399048e+09,'beds','held',0,NULL,90.0,1,'created',0,NULL,NULL,NULL,'',0,NULL,0.0,1.70000000029718399048e+09,NULL,0,'{"delay":0.0,"result":"late"}','{"created_by":"ann","held":true,"story":[[1700000000.297184,"created","by ann"]]}');
INSERT INTO "runs" VALUES('ffffffffffffffffffffffff','indent',2,1.70000000010148096085e+09,NULL,'theirs',3,NULL,90.0,5,'completed',1,'kitchen',NULL,NULL,'',0,NULL,0.0,NULL,1700000000.10725,-3,'{"text":"hello","prefix":"> "}','{"created_by":"ann","assigned_at":1700000000.102013,"claimed_at":1700000000.1051972,"started_at":1700000000.1051972,"assigned_by":"ann","output":"> hello","scores":{"kitchen":90.0},"story":[[1700000000.101481,"created","by ann"],[1700000000.102013,"assigning to other","kitchen, score 90.0 of 1"],[1700000000.102013,"assigned","to kitchen by ann, epoch 1"],[1700000000.1051972,"claimed","by kitchen"],[1700000000.1051972,"processing","on kitchen"],[1700000000.10725,"completed","on kitchen"]]}');
INSERT INTO "runs" VALUES('018bcfe5696aea7b5eb561a4','plan:nightly',1,1.70000000036231899261e+09,NULL,'plan:nightly/fetch/1',2,NULL,90.0,3,'completed',1,'nightly@laptop',NULL,NULL,'',0,NULL,0.0,NULL,1.70000000036396670341e+09,-2,'{"delay":0.0,"result":"fetch done","$results":[]}','{"created_by":"nightly","assigned_at":1700000000.3624012,"claimed_at":1700000000.3624012,"started_at":1700000000.3624012,"assigned_by":"nightly@laptop","output":"fetch done","story":[[1700000000.362319,"created","by nightly"],[1700000000.3624012,"assigning to self","nightly@laptop"],[1700000000.3624012,"claimed","by nightly@laptop, epoch 1"],[1700000000.3624012,"processing","on nightly@laptop"],[1700000000.3639667,"completed","on nightly@laptop"]]}');
INSERT INTO "runs" VALUES('018bcfe5696e94b2a02f34a6','plan:nightly',1,1700000000.36684,NULL,'plan:nightly/check/2',2,NULL,90.0,3,'completed',1,'nightly@laptop',NULL,NULL,'',0,NULL,0.0,NULL,1.70000000036936354637e+09,-2,'{"fetch":"fetch done","delay":0.0,"result":"check done","$results":["fetch"]}','{"created_by":"nightly","assigned_at":1700000000.3669,"claimed_at":1700000000.3669,"started_at":1700000000.3669,"assigned_by":"nightly@laptop","output":"check done","story":[[1700000000.36684,"created","by nightly"],[1700000000.3669,"assigning to self","nightly@laptop"],[1700000000.3669,"claimed","by nightly@laptop, epoch 1"],[1700000000.3669,"processing","on nightly@laptop"],[1700000000.3693635,"completed","on nightly@laptop"]]}');
INSERT INTO "runs" VALUES('018bcfe569759b0810c67fd9','plan:nightly',1,1.70000000037389397621e+09,NULL,'plan:nightly/build/3',2,NULL,90.0,3,'reassigning',1,NULL,NULL,NULL,'',1,NULL,1.70000000068964886665e+09,1.70000000068964886665e+09,NULL,-2,'{"check":"check done","delay":1.0,"result":"build done","$results":["check"]}','{"created_by":"nightly","previous":[["nightly@laptop",1,1700000000.3739595,1700000000.6896489,"released","the device is leaving"]],"story":[[1700000000.373894,"created","by nightly"],[1700000000.3739595,"assigning to self","nightly@laptop"],[1700000000.3739595,"claimed","by nightly@laptop, epoch 1"],[1700000000.3739595,"processing","on nightly@laptop"],[1700000000.6896489,"reassigning","released: the device is leaving"]]}');
CREATE TABLE sessions (
    id       TEXT PRIMARY KEY NOT NULL,
    device   TEXT NOT NULL,
    revision INTEGER NOT NULL,
    state    TEXT NOT NULL,
    draining INTEGER NOT NULL,
    beat_at  REAL NOT NULL,
    profile  TEXT NOT NULL,
    terms    TEXT NOT NULL
);
INSERT INTO "sessions" VALUES('018bcfe56841dcf4f4bea973','kitchen',2,'open',0,1.70000000009209632874e+09,'{"battery":80,"labels":{"floor":"1"},"resting":null,"quality":1.0}','{"joined_at":1700000000.0653102,"host":"kitchen","can":["oven"],"slots":1,"backlog":0,"accepts":null,"timeout":90.0}');
INSERT INTO "sessions" VALUES('018bcfe5696097b73ceb3ffd','nightly@laptop',4,'ended',1,1.70000000035685396194e+09,'{"labels":{},"resting":null,"quality":1.0}','{"joined_at":1700000000.35248,"host":"laptop","can":[],"slots":2,"backlog":0,"accepts":null,"timeout":15.0}');
CREATE INDEX runs_offered ON runs (urgency, created_at, id, offered) WHERE offered = 1;
CREATE INDEX runs_owned ON runs (session, timeout) WHERE session IS NOT NULL;
CREATE INDEX runs_due ON runs (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX runs_ended ON runs (ended_at) WHERE ended_at IS NOT NULL;
CREATE UNIQUE INDEX runs_key ON runs (key) WHERE key IS NOT NULL;
CREATE INDEX feed_open ON feed (left_to) WHERE open = 1;
CREATE INDEX ends_seen ON ends (seen_at);
CREATE INDEX contributions_of_store ON contributions (store, runs, bytes, blobs);
CREATE TRIGGER contributions_forgotten AFTER DELETE ON runs BEGIN
    DELETE FROM contributions WHERE run = old.id;
END;
CREATE TRIGGER feed_of_new AFTER INSERT ON runs BEGIN
    INSERT INTO feed (run) VALUES (new.id);
END;
CREATE TRIGGER feed_of_changed AFTER UPDATE ON runs BEGIN
    DELETE FROM feed WHERE run = new.id;
    INSERT INTO feed (run) VALUES (new.id);
END;
CREATE TRIGGER feed_of_forgotten AFTER DELETE ON runs BEGIN
    DELETE FROM feed WHERE run = old.id;
END;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('notices',2);
INSERT INTO "sqlite_sequence" VALUES('feed',15);
COMMIT;
