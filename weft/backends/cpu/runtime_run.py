"""The CPU runtime's main functions in LLVM IR (see runtime.py and runtime_text.py): one shared
step, a whole run, and the loop of a worker."""

RUN = """\
define internal void @parallel(ptr %pool, ptr %entry, i64 %work, ptr %scalars, ptr %scratch) #0 {
start:
  %groups.at = getelementptr i8, ptr %entry, i64 32
  %groups = load i64, ptr %groups.at
  %threads.at = FIELD threads
  %threads32 = load i32, ptr %threads.at
  %threads = zext i32 %threads32 to i64
  %most = shl i64 %threads, 4
  %ticks.at = FIELD chunk_ticks
  %ticks = load i64, ptr %ticks.at
  %cut = udiv i64 %work, %ticks
  %unknown = icmp eq i64 %work, 0
  %wish = select i1 %unknown, i64 %most, i64 %cut
  %wish.low = call i64 @llvm.smax.i64(i64 %wish, i64 %threads)
  %wanted = call i64 @llvm.smin.i64(i64 %wish.low, i64 %most)
  %round = add i64 %groups, %wanted
  %round.1 = sub i64 %round, 1
  %size = udiv i64 %round.1, %wanted
  %fill = add i64 %groups, %size
  %fill.1 = sub i64 %fill, 1
  %chunks64 = udiv i64 %fill.1, %size
  %chunks = trunc i64 %chunks64 to i32
  %size.at = getelementptr i8, ptr %entry, i64 40
  store i64 %size, ptr %size.at
  %chunks.at = getelementptr i8, ptr %entry, i64 48
  store i32 %chunks, ptr %chunks.at
  %entry.at = FIELD entry
  store ptr %entry, ptr %entry.at
  %done.at = FIELD done
  store atomic i32 0, ptr %done.at monotonic, align 4
  %tickets = FIELD tickets
  %old = load atomic i64, ptr %tickets monotonic, align 8
  %step = lshr i64 %old, 32
  %step.next = add i64 %step, 1
  %high = shl i64 %step.next, 32
  br label %publish
publish:
  %slice = phi i64 [ 0, %start ], [ %slice.next, %publish ]
  %slice.next = add i64 %slice, 1
  %from = call i64 @first(i64 %slice, i64 %threads, i64 %chunks64)
  %to = call i64 @first(i64 %slice.next, i64 %threads, i64 %chunks64)
  %share = sub i64 %to, %from
  %ticket = or i64 %high, %share
  %word = getelementptr [64 x i8], ptr %tickets, i64 %slice
  store atomic i64 %ticket, ptr %word release, align 8
  %more = icmp slt i64 %slice.next, %threads
  br i1 %more, label %publish, label %announce
announce:
  %wake.at = FIELD wake
  %w = atomicrmw add ptr %wake.at, i32 1 seq_cst, align 4
  %sleepers.at = FIELD sleepers
  %sleepers = load atomic i32, ptr %sleepers.at seq_cst, align 4
  %asleep = icmp sgt i32 %sleepers, 0
  br i1 %asleep, label %wake, label %take
wake:
  %others = sub i64 %chunks64, 1
  call void @futex_wake(ptr %pool, ptr %wake.at, i64 %others)
  br label %take
take:
  %own.groups = phi i64 [ 0, %announce ], [ 0, %wake ], [ %sum.groups, %work.one ]
  %own.ticks = phi i64 [ 0, %announce ], [ 0, %wake ], [ %sum.ticks, %work.one ]
  %own.chunks = phi i32 [ 0, %announce ], [ 0, %wake ], [ %sum.chunks, %work.one ]
  %got = call i64 @grab(ptr %pool, i64 0, i64 %threads)
  %none = icmp eq i64 %got, 0
  br i1 %none, label %finish, label %work.one
work.one:
  %t0 = call i64 @CLOCK()
  %count = call i64 @chunk(ptr %entry, i64 %got, i64 %threads, ptr %scalars, ptr %scratch)
  %t1 = call i64 @CLOCK()
  %spent = sub i64 %t1, %t0
  %sum.groups = add i64 %own.groups, %count
  %sum.ticks = add i64 %own.ticks, %spent
  %sum.chunks = add i32 %own.chunks, 1
  br label %take
finish:
  %before = atomicrmw add ptr %done.at, i32 %own.chunks acq_rel, align 4
  call void @wait_done(ptr %pool, i32 %chunks)
  call void @learn(ptr %entry, i64 %own.ticks, i64 %own.groups)
  ret void
}

; Does this run hold steps worth sharing (each `least` ticks) that come to `enough` ticks?
define internal i1 @busy(ptr %table, i64 %steps, i64 %least, i64 %enough) #0 {
start:
  br label %step
step:
  %i = phi i64 [ 0, %start ], [ %i.next, %next ]
  %sum = phi i64 [ 0, %start ], [ %sum.next, %next ]
  %more = icmp slt i64 %i, %steps
  br i1 %more, label %next, label %no
next:
  %entry = getelementptr [64 x i8], ptr %table, i64 %i
  %groups.at = getelementptr i8, ptr %entry, i64 32
  %groups = load i64, ptr %groups.at
  %cost.at = getelementptr i8, ptr %entry, i64 56
  %cost = load i64, ptr %cost.at
  %scaled = mul i64 %cost, %groups
  %work = lshr i64 %scaled, 8
  %large = icmp sge i64 %work, %least
  %many = icmp sgt i64 %groups, 1
  %worth = and i1 %large, %many
  %part = select i1 %worth, i64 %work, i64 0
  %sum.next = add i64 %sum, %part
  %i.next = add i64 %i, 1
  %full = icmp sge i64 %sum.next, %enough
  br i1 %full, label %yes, label %step
yes:
  ret i1 true
no:
  ret i1 false
}

define void @weft_run(ptr %pool, ptr %table, i64 %steps, ptr %scalars) #0 {
start:
  %scalars.at = FIELD scalars
  store ptr %scalars, ptr %scalars.at
  %scratch.at = FIELD scratch
  %scratch = load ptr, ptr %scratch.at
  %threads.at = FIELD threads
  %threads = load i32, ptr %threads.at
  %alone = icmp sle i32 %threads, 1
  %serial.at = FIELD serial_ticks
  %serial.ticks = load i64, ptr %serial.at
  %wake.at = FIELD wake_ticks
  %wake.ticks = load i64, ptr %wake.at
  %sleepers.at = FIELD sleepers
  %any = icmp sgt i64 %steps, 0
  br i1 %any, label %look, label %out
look:
  %sleepers.first = load atomic i32, ptr %sleepers.at monotonic, align 4
  %quiet = icmp sle i32 %sleepers.first, 0
  br i1 %quiet, label %step, label %ask
ask:
  %enough = shl i64 %wake.ticks, 2
  %busy = call i1 @busy(ptr %table, i64 %steps, i64 %serial.ticks, i64 %enough)
  br i1 %busy, label %rouse, label %step
rouse:
  %wake.word = FIELD wake
  %w = atomicrmw add ptr %wake.word, i32 1 seq_cst, align 4
  %all = zext i32 %sleepers.first to i64
  call void @futex_wake(ptr %pool, ptr %wake.word, i64 %all)
  br label %step
step:
  %i = phi i64 [ 0, %look ], [ 0, %ask ], [ 0, %rouse ], [ %i.next, %next ]
  %entry = getelementptr [64 x i8], ptr %table, i64 %i
  %groups.at = getelementptr i8, ptr %entry, i64 32
  %groups = load i64, ptr %groups.at
  %empty = icmp sle i64 %groups, 0
  br i1 %empty, label %next, label %weigh
weigh:
  %cost.at = getelementptr i8, ptr %entry, i64 56
  %cost = load i64, ptr %cost.at
  %scaled = mul i64 %cost, %groups
  %work = lshr i64 %scaled, 8
  %sleepers = load atomic i32, ptr %sleepers.at monotonic, align 4
  %asleep = icmp sgt i32 %sleepers, 0
  %limit = select i1 %asleep, i64 %wake.ticks, i64 %serial.ticks
  %known = icmp ne i64 %cost, 0
  %little = icmp slt i64 %work, %limit
  %tiny = and i1 %known, %little
  %single = icmp eq i64 %groups, 1
  %short = or i1 %tiny, %single
  %serial = or i1 %short, %alone
  br i1 %serial, label %here, label %shared
here:
  %t0 = call i64 @CLOCK()
  call void @play(ptr %entry, ptr %scalars, i64 0, i64 %groups, ptr %scratch)
  %t1 = call i64 @CLOCK()
  %spent = sub i64 %t1, %t0
  call void @learn(ptr %entry, i64 %spent, i64 %groups)
  br label %next
shared:
  call void @parallel(ptr %pool, ptr %entry, i64 %work, ptr %scalars, ptr %scratch)
  br label %next
next:
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i.next, %steps
  br i1 %more, label %step, label %out
out:
  ret void
}

define i32 @weft_worker(ptr %pool, ptr %scratch, i64 %me) #0 {
start:
  %entry.at = FIELD entry
  %scalars.at = FIELD scalars
  %done.at = FIELD done
  %waits.at = FIELD caller_waits
  %wake.at = FIELD wake
  %sleepers.at = FIELD sleepers
  %stop.at = FIELD stop
  %spins.at = FIELD spins
  %limit = load i32, ptr %spins.at
  %threads.at = FIELD threads
  %threads32 = load i32, ptr %threads.at
  %threads = zext i32 %threads32 to i64
  br label %look
look:
  ; Read before the tickets: while it stays the same, no ticket has been added since.
  %seen = load atomic i32, ptr %wake.at seq_cst, align 4
  %got = call i64 @grab(ptr %pool, i64 %me, i64 %threads)
  %none = icmp eq i64 %got, 0
  br i1 %none, label %idle, label %work
work:
  %entry = load ptr, ptr %entry.at
  %scalars = load ptr, ptr %scalars.at
  %chunks.at = getelementptr i8, ptr %entry, i64 48
  %chunks = load i32, ptr %chunks.at
  %count = call i64 @chunk(ptr %entry, i64 %got, i64 %threads, ptr %scalars, ptr %scratch)
  %before = atomicrmw add ptr %done.at, i32 1 seq_cst, align 4
  %now = add i32 %before, 1
  %last = icmp eq i32 %now, %chunks
  %waits = load atomic i32, ptr %waits.at seq_cst, align 4
  %waiting = icmp ne i32 %waits, 0
  %both = and i1 %last, %waiting
  br i1 %both, label %wake.caller, label %look
wake.caller:
  call void @futex_wake(ptr %pool, ptr %done.at, i64 1)
  br label %look
idle:
  %i = phi i32 [ 0, %look ], [ %i.next, %pausing ]
  %current = load atomic i32, ptr %wake.at acquire, align 4
  %same = icmp eq i32 %current, %seen
  br i1 %same, label %still, label %look
still:
  %patient = icmp slt i32 %i, %limit
  br i1 %patient, label %pausing, label %tired
pausing:
  PAUSE
  %i.next = add i32 %i, 1
  br label %idle
tired:
  %told = load atomic i32, ptr %stop.at seq_cst, align 4
  %stopping = icmp ne i32 %told, 0
  br i1 %stopping, label %leave, label %prepare
prepare:
  %syscall.at = FIELD syscall
  %syscall = load ptr, ptr %syscall.at
  %missing = icmp eq ptr %syscall, null
  br i1 %missing, label %resign, label %bed
bed:
  %s = atomicrmw add ptr %sleepers.at, i32 1 seq_cst, align 4
  %again = load atomic i32, ptr %wake.at seq_cst, align 4
  %quiet = icmp eq i32 %again, %seen
  br i1 %quiet, label %sleep, label %awake
sleep:
  call void @futex_wait(ptr %pool, ptr %wake.at, i32 %seen)
  br label %awake
awake:
  %a = atomicrmw sub ptr %sleepers.at, i32 1 seq_cst, align 4
  br label %look
resign:
  ret i32 1
leave:
  ret i32 0
}

"""
