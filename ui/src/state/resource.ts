/** Something that is asked for and arrives, or does not. */

import { useCallback, useLayoutEffect, useRef, useState } from 'preact/hooks'

import { OneAtATime } from './one'

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
  const [answer, setAnswer] = useState<Answer<T>>({ key: null, data: null, error: null })
  const asking = useRef<OneAtATime | null>(null)
  useLayoutEffect(() => {
    if (key === null) return
    let isOver = false
    const take = (next: Answer<T>): void => {
      if (!isOver) setAnswer(next)
    }
    asking.current = new OneAtATime(() =>
      ask().then(
        (data) => take({ key, data, error: null }),
        (error: Error) => take({ key, data: null, error }),
      ),
    )
    asking.current.ask()
    return () => {
      isOver = true
      asking.current = null
    }
  }, [key])
  const again = useCallback(() => asking.current?.ask(), [])
  const current = answer.key === key && key !== null
  return {
    data: current ? answer.data : null,
    error: current ? answer.error : null,
    loading: key !== null && !current,
    again,
  }
}

interface Answer<T> {
  key: string | null
  data: T | null
  error: Error | null
}

/** An answer that says what the one before it said is that one: nothing is drawn again for it. */
export function useSame<T>(resource: Resource<T>): Resource<T> {
  const last = useRef({ given: resource.data, text: '', shown: resource.data })
  if (last.current.given !== resource.data) {
    const text = JSON.stringify(resource.data)
    const shown = text === last.current.text ? last.current.shown : resource.data
    last.current = { given: resource.data, text, shown }
  }
  return { ...resource, data: last.current.shown }
}
