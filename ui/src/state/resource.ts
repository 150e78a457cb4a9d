/** Something that is asked for and arrives, or does not. */

import { useCallback, useLayoutEffect, useRef, useState } from 'preact/hooks'

export interface Resource<T> {
  /** The newest answer; that of an earlier question is gone at once. */
  data: T | null
  error: Error | null
  loading: boolean
  /** Ask again, showing the old answer until the new one is there. */
  again: () => void
}

/** Asks whenever `key` changes, without waiting for what is drawn meanwhile; null asks nothing. */
export function useResource<T>(key: string | null, ask: () => Promise<T>): Resource<T> {
  const [answer, setAnswer] = useState<{ key: string | null; data: T | null; error: Error | null }>({
    key: null,
    data: null,
    error: null,
  })
  const [times, setTimes] = useState(0)
  const latest = useRef(0)
  useLayoutEffect(() => {
    if (key === null) return
    const number = ++latest.current
    const isLatest = (): boolean => number === latest.current
    ask().then(
      (data) => isLatest() && setAnswer({ key, data, error: null }),
      (error: Error) => isLatest() && setAnswer({ key, data: null, error }),
    )
  }, [key, times])
  const again = useCallback(() => setTimes((count) => count + 1), [])
  const current = answer.key === key && key !== null
  return {
    data: current ? answer.data : null,
    error: current ? answer.error : null,
    loading: key !== null && !current,
    again,
  }
}
