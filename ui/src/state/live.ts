/** What the page hears of the runs on show while they go on. */

import { useEffect, useState } from 'preact/hooks'

import type { Live, Recorded } from '../data/source'
import type { RunInfo } from '../data/types'
import { useSource } from './source'

/** What is shown of episodes is asked for again no more often than this. */
const REFRESH_MS = 1000

interface Handlers extends Pick<Live, 'onRuns' | 'onStatus' | 'onLine' | 'onTalk'> {
  /** Episodes were added to the run that is open, or taken back. */
  onRecorded: () => void
}

/** Listens to the runs on show that still go on; returns a number that grows when something may be new in the first. */
export function useLive(runs: RunInfo[], shown: string[], handlers: Handlers): number {
  const source = useSource()
  const [written, setWritten] = useState(0)
  const latest = useLatest(handlers)
  const going = shown.filter((run) => runs.find((info) => info.run === run)?.status === 'running')
  useEffect(() => {
    let waiting = 0
    let newest: Recorded | null = null
    let reported: Recorded | null = null
    const soon = (): void => {
      waiting ||= window.setTimeout(() => {
        waiting = 0
        setWritten((count) => count + 1)
        if (reported === null || reported.total !== newest?.total || reported.last !== newest.last) latest.current.onRecorded()
        reported = newest
      }, REFRESH_MS)
    }
    const end = source.listen(going, {
      onRuns: () => latest.current.onRuns(),
      onStatus: () => {
        latest.current.onStatus()
        reported = null
        soon()
      },
      onEpisodes: (run, recorded) => {
        if (run !== shown[0]) return
        newest = recorded
        soon()
      },
      onLine: (run, line) => latest.current.onLine(run, line),
      onTalk: () => latest.current.onTalk(),
    })
    return () => {
      clearTimeout(waiting)
      end()
      if (going.length === 0) return
      // The list of runs may have shown that a run ended before the run itself could.
      setWritten((count) => count + 1)
      latest.current.onStatus()
    }
  }, [going.join(' '), shown[0]])
  return written
}

function useLatest<T>(value: T): { current: T } {
  const [holder] = useState({ current: value })
  holder.current = value
  return holder
}
